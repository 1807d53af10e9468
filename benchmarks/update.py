"""Measures one optimiser step on samples that share a state, and on a branching tree: time, peak memory and gradients.

python benchmarks/update.py
python benchmarks/update.py --state 32 --actions 4 --action 8 --turns 4 --rounds 1
python benchmarks/update.py --device cuda --dtype bfloat16 --shape qwen3-0.6b --keep-going
python benchmarks/update.py --device cuda --dtype bfloat16 --shape qwen3-4b --peers recompute offload

The last command compares our update with update.recompute, and with update.offload as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from common import (
    MIB,
    Contender,
    alternate,
    chosen,
    contender_details,
    contender_rows,
    device_peak,
    failure,
    finish,
    options,
    peak_of_child,
    peak_operations,
    positive,
    prepare,
    ratio,
    say_peak,
    share,
    share_base,
    show,
    timed,
)
from floor import ModelSize, calibrate, update_operations
from turnwise.rollouts.pack import pack
from turnwise.types import Credit, RolloutTree
from updates import Ours, Padded, Trl, TrlTrie, difference
from work import branching_tree, by_turn, credit, flat_tree

PEERS = ("padded", "trl", "trl_trie", "recompute", "offload")
WAYS = ("turnwise", *PEERS)
OURS: dict[str, dict[str, Any]] = {
    "turnwise": {},
    "recompute": {"recompute": True},
    "offload": {"recompute": True, "offload": True},
}

Sample = tuple[RolloutTree, Credit]
Layouts = dict[str, tuple[str, list[RolloutTree], list[Credit], int]]
"""Name of a contender -> its way, its trees and credits, and the tokens of a row or pass. Turnwise comes first."""


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    if args.memory_of:
        say_peak(*steps_for_memory(args, device), device)
        return
    absent: dict[str, str] = {}
    flat, tree = samples(args)
    parties: dict[str, Any] = {}
    for way in WAYS:
        if reason := missing(args, way):
            absent |= {f"x_{way}": reason} if reason != "not chosen" else {}
        elif (made := tried(args, absent, way, partial(party, args, device, way))) is not None:
            parties[way] = made
            share_base(made.model, parties["turnwise"].model)
    for work in (flat, tree):
        parties["turnwise"].sampled(*work, seed=args.seed)
    group, grown = layouts(args, flat, tree, [way for way in parties if way != "turnwise"])
    errors = {**gradient_errors(args, absent, parties, group), **gradient_errors(args, absent, parties, grown)}
    contenders, trees = (
        [timed_step(name, parties[way].prepare(*rest), device) for name, (way, *rest) in work.items()]
        for work in (group, grown)
    )
    alternate(contenders, args.rounds, absent if args.keep_going else None)
    alternate(trees, args.tree_rounds, absent if args.keep_going else None)
    sizes = packed_sizes(args, flat, tree, ModelSize.of(parties["turnwise"].model.get_base_model()))
    rate = calibrate(1 << 20, getattr(torch, args.dtype), device).operations
    sizes["utilisation"] = share(sizes["operations"], contenders[0].seconds, rate)
    sizes["mfu"] = {
        c.name: share(sizes[work], c.seconds, peak_operations(device))
        for work, several in (("operations", contenders), ("tree_operations", trees))
        for c in several
    }
    sizes["halvings"] = parties["turnwise"].module.halvings
    report(args, contenders, trees, errors, peaks_of(args, absent, parties, group, contenders), absent, sizes)


def missing(args: argparse.Namespace, way: str) -> str | None:
    """Returns the reason why a way is not measured, or None. Some ways must be named with ``--peers``."""
    if way == "turnwise":
        return None
    named = way in ("recompute", "offload") or (way == "trl_trie" and args.device == "cpu")
    if not chosen(args, way) or (named and args.peers is None):
        return "not chosen"
    return "trl: not installed; `make test` installs it" if way.startswith("trl") and find_spec("trl") is None else None


def party(args: argparse.Namespace, device: torch.device, way: str) -> Any:
    given = (args.shape, args.dtype, device)
    if way in OURS:
        return Ours(*given, **OURS[way])
    return Trl(*given, args.actions) if way == "trl" else {"padded": Padded, "trl_trie": TrlTrie}[way](*given)


def tried(args: argparse.Namespace, absent: dict[str, str], way: str, make: Callable[[], Any]) -> Any:
    """Returns the result of ``make``; with --keep-going, None for a peer that fails, with the reason in ``absent``."""
    try:
        return make()
    except Exception as error:
        if not args.keep_going or way == "turnwise":
            raise
        absent[way] = failure(way, error)
        return None


def samples(args: argparse.Namespace) -> tuple[Sample, Sample]:
    flat = flat_tree(args.seed, args.state, args.actions, args.action)
    tree = branching_tree(
        args.seed + 1, args.tree_state, args.roots, args.branches, args.turns, args.tree_action, args.tree_observation
    )
    return (flat, credit(flat, args.seed)), (tree, credit(tree, args.seed + 1))


def layouts(args: argparse.Namespace, flat: Sample, tree: Sample, peers: list[str]) -> tuple[Layouts, Layouts]:
    """Returns the group at one state and the branching tree, each in the form that every contender gets."""
    group: Layouts = {
        way: (way, [flat[0]], [flat[1]], args.row_tokens if way in OURS else args.group_tokens)
        for way in ("turnwise", *peers)
    }
    grown: Layouts = {"tree, turnwise": ("turnwise", [tree[0]], [tree[1]], args.tree_row_tokens)}
    if "padded" in peers:
        grown["tree, by turn"] = ("padded", *by_turn(*tree), args.tree_tokens)
        grown["tree, by path"] = ("padded", [tree[0]], [tree[1]], args.tree_tokens)
    if "trl_trie" in peers:
        grown["tree, trl_trie"] = ("trl_trie", [tree[0]], [tree[1]], args.tree_tokens)
    return group, grown


def timed_step(name: str, step: Callable[[], None], device: torch.device) -> Contender:
    def once() -> float:
        step()
        return 1.0

    return Contender(name, lambda number: timed(once, device), step)


def gradient_errors(
    args: argparse.Namespace, absent: dict[str, str], parties: dict[str, Any], work: Layouts
) -> dict[str, float]:
    """Returns the gradient difference to each peer, before any step changes weights. Failing peers leave ``work``."""
    ours, *others = work.items()
    mine = parties[ours[1][0]].gradients(*ours[1][1:])
    found: dict[str, float] = {}
    for name, (way, *rest) in others:
        theirs = tried(args, absent, name, partial(parties[way].gradients, *rest))
        parties[way].model.zero_grad(set_to_none=True)
        if theirs is None:
            del work[name]
        else:
            found[name] = difference(mine, theirs)
    return found


def steps_for_memory(args: argparse.Namespace, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns a smallest step, which loads everything that is loaded lazily, and the step whose peak is measured."""
    way = party(args, device, args.memory_of)
    small = flat_tree(args.seed, 8, args.actions, 2)
    tree, given = samples(args)[0]
    tokens = args.row_tokens if args.memory_of in OURS else args.group_tokens
    return way.prepare([small], [credit(small, 0)], tokens), way.prepare([tree], [given], tokens)


def peaks_of(
    args: argparse.Namespace, absent: dict[str, str], parties: dict[str, Any], group: Layouts, measured: list[Contender]
) -> dict[str, int]:
    """Returns the peak bytes of each way's step: on CUDA by torch's record, on a CPU in a process of its own."""
    found: dict[str, int] = {}
    device = torch.device(args.device)
    for contender in measured:
        way, *work = group[contender.name]
        if device.type == "cuda":
            peak = tried(args, absent, way, partial(device_peak, parties[way].prepare(*work), device))
        else:
            peak = tried(args, absent, way, partial(peak_of_child, __file__, way, args))
        found |= {} if peak is None else {way: peak}
    return found


def packed_sizes(args: argparse.Namespace, flat: Sample, tree: Sample, size: ModelSize) -> dict[str, Any]:
    """Returns tokens, on paths and packed, and operations of the group and of the tree."""
    group = pack([flat[0]], [flat[1]], args.row_tokens, args.row_tokens)
    grown = pack([tree[0]], [tree[1]], args.tree_row_tokens, args.tree_row_tokens)
    return {
        "stored_tokens": group.stored_tokens,
        "path_tokens": group.path_tokens,
        "tree_stored_tokens": grown.stored_tokens,
        "tree_path_tokens": grown.path_tokens,
        "tree_turn_tokens": sum(len(t.state.ids) + len(t.turns[0].action_ids) for t in by_turn(*tree)[0]),
        "operations": update_operations(group, size),
        "tree_operations": update_operations(grown, size),
    }


def report(
    args: argparse.Namespace,
    contenders: list[Contender],
    trees: list[Contender],
    errors: dict[str, float],
    peaks: dict[str, int],
    absent: dict[str, str],
    sizes: dict[str, Any],
) -> None:
    rate = {c.name: c.rate for c in [*contenders, *trees]}

    def faster(ours: str, peer: str) -> float | None:
        return ratio(rate[ours], rate[peer]) if peer in rate else None

    ratios: dict[str, Any] = {f"x_{peer}": faster("turnwise", peer) for peer in PEERS}
    ratios |= {
        "x_tree_unshared": faster("tree, turnwise", "tree, by turn"),
        "x_tree_paths": faster("tree, turnwise", "tree, by path"),
        "memory_ratio": ratio(peaks["padded"], peaks["turnwise"]) if "padded" in peaks else None,
        "grad_error": max(errors.values()) if errors else None,
    }
    rows = [*contender_rows(contenders, "turnwise"), *contender_rows(trees, "tree, turnwise")]
    for row in rows:
        row.append(f"{peaks[row[0]] / MIB:,.1f}" if row[0] in peaks else "")
        row.append(f"{errors[row[0]]:.1e}" if row[0] in errors else "")
    notes = [f"not measured: {reason}" for reason in absent.values()]
    notes.append(
        f"tree: {args.roots} rollouts of {args.turns} turns, {args.branches} branches each; "
        f"{sizes['tree_turn_tokens']:,} tokens in the histories of its turns, {sizes['tree_path_tokens']:,} on its paths, "
        f"{sizes['tree_stored_tokens']:,} once packed"
    )
    notes.append(f"our update runs at {sizes['utilisation']:.1%} of the rate of a large matrix product")
    title = f"Updates: state of {args.state} tokens, {args.actions} actions of {args.action}, LoRA, {args.shape}"
    header = ["", "seconds", "updates/s", "slowest to fastest", "ours is", "peak MiB", "gradient error"]
    show(title, header, rows, notes)
    details = {
        "absent": absent,
        "unit": "updates",
        "grad_errors": errors,
        "peak_bytes": peaks,
        **sizes,
        "tokens_per_second": {
            **{c.name: round(sizes["path_tokens"] / c.seconds, 1) for c in contenders},
            **{c.name: round(sizes["tree_path_tokens"] / c.seconds, 1) for c in trees},
        },
        **contender_details([*contenders, *trees]),
    }
    finish("update", args, ratios, details)


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__, rounds=9)
    add = parser.add_argument
    add("--state", type=positive, default=512, help="tokens of the shared state")
    add("--actions", type=positive, default=16)
    add("--action", type=positive, default=32, help="tokens of an action")
    add("--roots", type=positive, default=4, help="number of rollouts of the tree")
    add("--branches", type=positive, default=2, help="number of continuations of each rollout of the tree")
    add("--turns", type=positive, default=20, help="number of turns of each path of the tree")
    add("--tree-rounds", type=positive, default=3, help="number of measured rounds of the tree")
    add("--tree-state", type=positive, default=256)
    add("--tree-action", type=positive, default=12)
    add("--tree-observation", type=positive, default=36)
    add("--row-tokens", type=positive, default=2048, help="Turnwise: tokens of a packed row (conf/train.yaml)")
    add("--tree-row-tokens", type=positive, default=8192, help="Turnwise: tokens of a row of the tree (trace.yaml)")
    add("--group-tokens", type=positive, default=1 << 30, help="peers: tokens of a pass (default: all rows in one)")
    add("--tree-tokens", type=positive, default=16384, help="peers: tokens of a pass of the tree")
    add("--memory-of", choices=WAYS, default=None, help="run one step of this way alone and print its peak memory")
    return parser


if __name__ == "__main__":
    main()
