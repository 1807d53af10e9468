"""Compares one optimiser step on samples that share a state, and on a branching tree: time, peak memory and gradients.

python benchmarks/update.py
python benchmarks/update.py --state 32 --actions 4 --action 8 --turns 4 --rounds 1
python benchmarks/update.py --device cuda --dtype bfloat16 --shape qwen3-0.6b
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from common import (
    Contender,
    Round,
    alternate,
    chosen,
    contender_details,
    contender_rows,
    finish,
    options,
    positive,
    prepare,
    ratio,
    show,
    timed,
)
from floor import ModelSize, calibrate, update_operations
from memory import peak_of_child, say_peak
from samples import branching_tree, by_turn, credit, flat_tree
from turnwise.rollouts.pack import pack
from turnwise.types import Credit, RolloutTree
from updates import Ours, Padded, Trl, difference

WAYS = ("turnwise", "padded", "trl")


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    if args.memory_of:
        say_peak(*steps_for_memory(args, device), device)
        return
    absent: dict[str, str] = {}
    if find_spec("trl") is None:
        absent["x_trl"] = "trl: not installed; it is in requirements-dev.txt"
    ways = [way for way in WAYS if way == "turnwise" or (chosen(args, way) and f"x_{way}" not in absent)]
    flat, tree = samples(args)
    parties = {way: party(args, device, way) for way in ways}
    for work in (flat, tree):
        parties["turnwise"].sampled(*work, seed=args.seed)
    group, grown = layouts(args, flat, tree, [way for way in ways if way != "turnwise"])
    errors = {**gradient_errors(parties, group), **gradient_errors(parties, grown)}
    contenders = [timed_step(name, parties[way].prepare(*work), device) for name, (way, *work) in group.items()]
    trees = [timed_step(name, parties[way].prepare(*work), device) for name, (way, *work) in grown.items()]
    alternate(contenders, args.rounds)
    alternate(trees, args.tree_rounds)
    peaks = {way: peak_of_child(__file__, way, args) for way in ways}
    sizes = packed_sizes(args, flat, tree, ModelSize.of(parties["turnwise"].model.get_base_model()))
    rate = calibrate(1e6, getattr(torch, args.dtype), device).operations
    sizes["utilisation"] = float(f"{sizes['operations'] / contenders[0].seconds / rate:.3g}")
    report(args, contenders, trees, errors, peaks, absent, sizes)


def party(args: argparse.Namespace, device: torch.device, way: str) -> Any:
    if way == "trl":
        return Trl(args.shape, args.dtype, device, args.actions)
    return (Ours if way == "turnwise" else Padded)(args.shape, args.dtype, device)


Sample = tuple[RolloutTree, Credit]
Layouts = dict[str, tuple[str, list[RolloutTree], list[Credit], int]]
"""Name of a contender -> its implementation, its trees and credits, and the tokens of a row or pass. Ours is first."""


def layouts(args: argparse.Namespace, flat: Sample, tree: Sample, peers: list[str]) -> tuple[Layouts, Layouts]:
    """Returns the group at one state and the branching tree in the layout of each contender."""
    group: Layouts = {"turnwise": ("turnwise", [flat[0]], [flat[1]], args.row_tokens)}
    group |= {way: (way, [flat[0]], [flat[1]], args.group_tokens) for way in peers}
    grown: Layouts = {"tree, turnwise": ("turnwise", [tree[0]], [tree[1]], args.tree_row_tokens)}
    if "padded" in peers:
        grown["tree, by turn"] = ("padded", *by_turn(*tree), args.tree_tokens)
        grown["tree, by path"] = ("padded", [tree[0]], [tree[1]], args.tree_tokens)
    return group, grown


def samples(args: argparse.Namespace) -> tuple[tuple[RolloutTree, Credit], tuple[RolloutTree, Credit]]:
    """Returns the group at one state, and the branching tree."""
    flat = flat_tree(args.seed, args.state, args.actions, args.action)
    tree = branching_tree(
        args.seed + 1, args.tree_state, args.roots, args.branches, args.turns, args.tree_action, args.tree_observation
    )
    return (flat, credit(flat, args.seed)), (tree, credit(tree, args.seed + 1))


def timed_step(name: str, step: Callable[[], None], device: torch.device) -> Contender:
    def once() -> float:
        step()
        return 1.0

    def run(number: int) -> Round:
        return timed(once, device)

    return Contender(name, run, step)


def gradient_errors(parties: dict[str, Any], work: Layouts) -> dict[str, float]:
    """Returns the difference of our gradients from those of each peer, before any step has changed the weights."""
    ours, *others = work.items()
    mine = parties[ours[1][0]].gradients(*ours[1][1:])
    return {name: difference(mine, parties[way].gradients(*rest)) for name, (way, *rest) in others}


def steps_for_memory(args: argparse.Namespace, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns a smallest step, which loads everything that is loaded lazily, and the step whose peak is measured."""
    way = party(args, device, args.memory_of)
    small = flat_tree(args.seed, 8, args.actions, 2)
    work = samples(args)[0]
    tokens = args.row_tokens if args.memory_of == "turnwise" else args.group_tokens
    return way.prepare([small], [credit(small, 0)], tokens), way.prepare([work[0]], [work[1]], tokens)


def packed_sizes(args: argparse.Namespace, flat: Sample, tree: Sample, size: ModelSize) -> dict[str, float]:
    """Returns the tokens of both works, on their paths and packed, and the number of operations of the group's update."""
    group = pack([flat[0]], [flat[1]], args.row_tokens, args.row_tokens)
    grown = pack([tree[0]], [tree[1]], args.tree_row_tokens, args.tree_row_tokens)
    return {
        "stored_tokens": group.stored_tokens,
        "path_tokens": group.path_tokens,
        "tree_stored_tokens": grown.stored_tokens,
        "tree_path_tokens": grown.path_tokens,
        "tree_turn_tokens": sum(len(t.state.ids) + len(t.turns[0].action_ids) for t in by_turn(*tree)[0]),
        "operations": update_operations(group, size),
    }


def report(
    args: argparse.Namespace,
    contenders: list[Contender],
    trees: list[Contender],
    errors: dict[str, float],
    peaks: dict[str, int],
    absent: dict[str, str],
    sizes: dict[str, float],
) -> None:
    """Reports the ratios, the table and the last line."""
    rate = {c.name: c.rate for c in [*contenders, *trees]}

    def faster(ours: str, peer: str) -> float | None:
        return ratio(rate[ours], rate[peer]) if peer in rate else None

    ratios: dict[str, Any] = {
        "x_padded": faster("turnwise", "padded"),
        "x_trl": faster("turnwise", "trl"),
        "x_tree_unshared": faster("tree, turnwise", "tree, by turn"),
        "x_tree_paths": faster("tree, turnwise", "tree, by path"),
        "memory_ratio": ratio(peaks["padded"], peaks["turnwise"]) if "padded" in peaks else None,
        "grad_error": max(errors.values()) if errors else None,
    }
    rows = contender_rows(contenders, "turnwise")
    for row in rows:
        row.append(f"{peaks[row[0]] / 2**20:,.1f}")
        row.append("" if row[0] == "turnwise" else f"{errors[row[0]]:.1e}")
    for row in contender_rows(trees, "tree, turnwise"):
        rows.append([*row, "", f"{errors[row[0]]:.1e}" if row[0] in errors else ""])
    notes = [f"not measured: {reason}" for reason in absent.values()]
    notes.append(
        f"tree: {args.roots} rollouts of {args.turns} turns, {args.branches} branches each; "
        f"{sizes['tree_turn_tokens']:,} tokens in the histories of its turns, {sizes['tree_path_tokens']:,} on its paths, "
        f"{sizes['tree_stored_tokens']:,} once packed"
    )
    notes.append(f"ours runs at {sizes['utilisation']:.1%} of the rate of a large matrix product")
    title = f"Updates: state of {args.state} tokens, {args.actions} actions of {args.action}, LoRA, {args.shape}"
    header = ["", "seconds", "updates/s", "slowest to fastest", "ours is", "peak MiB", "gradient error"]
    show(title, header, rows, notes)
    details = {
        "absent": absent,
        "unit": "updates",
        "grad_errors": errors,
        "peak_bytes": peaks,
        **sizes,
        **contender_details([*contenders, *trees]),
    }
    finish("update", args, ratios, details)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = options(__doc__, rounds=9)
    add = parser.add_argument
    add("--state", type=positive, default=512, help="tokens of the shared state")
    add("--actions", type=positive, default=16)
    add("--action", type=positive, default=32, help="tokens of an action")
    add("--roots", type=positive, default=4, help="number of rollouts of the tree")
    add("--branches", type=positive, default=2, help="number of continuations of each rollout")
    add("--turns", type=positive, default=20, help="number of turns of each path")
    add("--tree-rounds", type=positive, default=3, help="measured rounds of the tree, which take longer")
    add("--tree-state", type=positive, default=256)
    add("--tree-action", type=positive, default=12)
    add("--tree-observation", type=positive, default=36)
    add("--row-tokens", type=positive, default=2048, help="ours: most tokens of a packed row (conf/train.yaml)")
    add("--tree-row-tokens", type=positive, default=8192, help="the same for the tree (conf/method/trace.yaml)")
    add(
        "--group-tokens",
        type=positive,
        default=1 << 30,
        help="peers: most tokens of a pass (default: all rows in one pass)",
    )
    add("--tree-tokens", type=positive, default=16384, help="the same for the tree")
    add(
        "--memory-of", choices=WAYS, default=None, help="run one step of this contender alone and print its peak memory"
    )
    return parser


if __name__ == "__main__":
    main()
