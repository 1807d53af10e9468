"""Measures attention over packed trees by all plans: one layer, forward and backward, for several lengths and trees.

python benchmarks/attention.py --device cuda --dtype bfloat16
python benchmarks/attention.py --device cuda --dtype bfloat16 --batch 4 --lengths 1024 2048
python benchmarks/attention.py --lengths 64 128 --rounds 1

    dense      a mask of all pairs (models/attention.py)
    blocks     flex attention by blocks (models/attention_gpu.py): CUDA; on a CPU only the forward pass is timed
    gathered   variable-length FlashAttention over the keys of each path, as in TRL's packed trie (gathered.py)
    unsloth    Unsloth's kernel for one prefix and its answers, if it is installed: CUDA (grouper.py)
    runs       torch's CPU kernel, piece by piece (models/attention_cpu.py): CPU

All plans get the same queries, keys and values; `apart` is the largest difference to the output of the dense plan. The
threshold is the shortest length from which on blocks are never slower than the dense mask. A training run uses blocks
from the length that LARGE in models/logprobs.py sets. With --batch, several equal rows are one micro-batch, and
only the plans that a training run can use are measured.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from common import finish, options, positive, prepare, show, timed
from devices import begin_peak, failure, peak_bytes
from gathered import GatheredTree
from grouper import GroupedTree, grouper_absent
from samples import branching_tree, credit, flat_tree
from shapes import config_of
from turnwise.models.attention import PackedTree, Plan
from turnwise.models.attention_cpu import RunTree
from turnwise.models.attention_gpu import BlockTree
from turnwise.models.logprobs import LARGE
from turnwise.rollouts.pack import pack

TREES = ("chain", "group", "branches")
WHOLE = 1 << 30
PLANS: dict[str, Callable[[Tensor], Plan]] = {
    "dense": PackedTree,
    "blocks": BlockTree,
    "gathered": GatheredTree,
    "unsloth": GroupedTree,
    "runs": RunTree,
}


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    absent = absent_plans(args)
    rows: list[dict[str, Any]] = []
    for kind in TREES:
        for length in args.lengths:
            end_BS = ends_of(kind, length, args.seed).to(device).repeat(args.batch, 1)
            rows.append(
                {"tree": kind, "length": end_BS.shape[1], "asked": length, **measured(args, end_BS, absent, kind)}
            )
    found, in_use = threshold(rows), math.isqrt((LARGE - 1) // args.batch) + 1
    header = ["tree", "tokens", *(f"{name}, ms" for name in PLANS), *(f"{name}, MiB" for name in PLANS)]
    table = [
        [
            row["tree"],
            row["length"],
            *(cell(row, name, "ms") for name in PLANS),
            *(cell(row, name, "mib") for name in PLANS),
        ]
        for row in rows
    ]
    notes = [f"not measured: {reason}" for reason in absent.values()]
    notes.append(
        f"blocks are no slower than the dense mask from this number of tokens on: {found or 'none'}; runs use blocks "
        f"from {in_use} tokens on"
    )
    show(f"Attention, a layer of {args.shape}, {args.dtype}", header, table, notes)
    finish("attention", args, {"threshold": found, "threshold_in_use": in_use}, {"absent": absent, "rows": rows})


def absent_plans(args: argparse.Namespace) -> dict[str, str]:
    """Returns the reason for each plan that cannot be measured on this device."""
    found = {}
    if reason := grouper_absent(args.device):
        found["unsloth"] = reason
    if args.device != "cpu":
        found["runs"] = "runs: the kernel of this plan works only on a CPU"
    if args.batch > 1:
        found |= {name: f"{name}: this plan takes only one row at a time" for name in ("gathered", "unsloth")}
    return found


def ends_of(kind: str, length: int, seed: int) -> Tensor:
    """Returns the subtree ends (1, S) of a packed row of about ``length`` tokens.

    A chain has no branch. A group is a state of half of the tokens and 16 actions. Branches are four rollouts of eight
    turns, each continued twice.
    """
    if kind == "branches":
        turn = max(
            2, length // 80
        )  # 4 rollouts of 8 turns and 8 continuations of 5 or 3: 64 turns, and a state like 16 of them
        tree = branching_tree(seed, 16 * turn, 4, 2, 8, turn - turn // 2, turn // 2)
    else:
        actions = 1 if kind == "chain" else 16
        tree = flat_tree(seed, length // 2, actions, max(1, length // 2 // actions))
    return pack([tree], [credit(tree, seed)], WHOLE, WHOLE).batches[0].end_BS


def measured(args: argparse.Namespace, end_BS: Tensor, absent: dict[str, str], kind: str) -> dict[str, Any]:
    """Returns milliseconds, MiB and the difference to the dense output for every plan on one row."""
    config = config_of(args.shape)
    heads, kv, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    generator = torch.Generator().manual_seed(args.seed)
    given = [
        torch.randn(len(end_BS), n, end_BS.shape[1], size, generator=generator).to(
            end_BS.device, getattr(torch, args.dtype)
        )
        for n in (heads, kv, kv)
    ]
    found: dict[str, Any] = {}
    dense: Tensor | None = None
    for name, make in PLANS.items():
        if name in absent or (name == "unsloth" and kind == "branches"):
            continue
        backward = not (name == "blocks" and args.device == "cpu")
        try:
            found[name], answer = plan_measured(make(end_BS), given, args.rounds, backward)
        except Exception as error:
            found[name] = {"failed": failure(name, error)}
            continue
        dense = answer if name == "dense" else dense
        found[name]["apart"] = float((answer - dense).abs().max()) if dense is not None else None
    return found


def plan_measured(plan: Plan, given: Sequence[Tensor], rounds: int, backward: bool) -> tuple[dict[str, Any], Tensor]:
    """Returns medians over the rounds, without the warm-up round, and the output in float32."""
    inputs = [x.clone().requires_grad_(backward) for x in given]
    query, key, value = inputs
    device, scaling = query.device, query.shape[-1] ** -0.5
    answers: list[Tensor] = []

    def once() -> float:
        out = plan.attend(0, query, key, value, scaling)
        if backward:
            torch.autograd.grad(out.float().square().sum(), inputs)
        answers[:] = [out.detach()]
        return 1.0

    once()
    answers.clear()
    begin_peak(device)
    before = peak_bytes(device) or 0
    seconds = [timed(once, device).seconds for _ in range(rounds)]
    peak = peak_bytes(device)
    told = {
        "ms": round(1e3 * statistics.median(seconds), 4),
        "mib": None if peak is None else round((peak - before) / 2**20, 1),
        "backward": backward,
    }
    return told, answers[0].float()


def threshold(rows: Sequence[dict[str, Any]]) -> int | None:
    """Returns the shortest length from which on blocks are never slower than the dense mask in any tree, or None."""
    lengths = sorted({row["asked"] for row in rows})
    best = None
    for length in reversed(lengths):
        pairs = [(row.get("blocks", {}), row.get("dense", {})) for row in rows if row["asked"] == length]
        if not all("ms" in blocks and blocks["backward"] and faster(blocks, dense) for blocks, dense in pairs):
            break
        best = length
    return best


def faster(blocks: dict[str, Any], dense: dict[str, Any]) -> bool:
    """Returns whether blocks are no slower. A mask that does not fit into memory counts as slower."""
    return "ms" not in dense or bool(blocks["ms"] <= dense["ms"])


def cell(row: dict[str, Any], name: str, key: str) -> str:
    value = row.get(name, {}).get(key)
    return "" if value is None else f"{value:,.2f}" if key == "ms" else f"{value:,.0f}"


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__, rounds=5)
    parser.set_defaults(shape="qwen3-4b")
    parser.add_argument("--batch", type=positive, default=1, help="number of packed rows in a micro-batch (1)")
    lengths = [256, 512, 1024, 2048, 4096, 8192, 16384]
    parser.add_argument(
        "--lengths", type=positive, nargs="+", default=lengths, help="approximate tokens of a packed row"
    )
    return parser


if __name__ == "__main__":
    main()
