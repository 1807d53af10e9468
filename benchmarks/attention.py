"""Measures attention over packed trees by all plans: one layer, forward and backward, for several lengths and trees.

python benchmarks/attention.py --device cuda --dtype bfloat16
python benchmarks/attention.py --lengths 64 128 --rounds 1

    dense      a mask of all pairs (models/attention.py)
    blocks     flex attention by blocks (models/attention_gpu.py): CUDA; on a CPU only the forward pass is timed
    runs       torch's CPU kernel, piece by piece (models/attention_cpu.py): CPU

All plans get the same queries, keys and values; `apart` is the largest difference to the output of the dense plan. The
threshold is the shortest length from which on blocks are never slower than the dense mask. A training run uses blocks
from the length that LARGE in models/logprobs.py sets.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from common import MIB, begin_peak, config_of, failure, finish, options, peak_since, positive, prepare, show, timed
from turnwise.models.attention import PackedTree, Plan
from turnwise.models.attention_cpu import RunTree
from turnwise.models.attention_gpu import BlockTree
from turnwise.models.logprobs import LARGE
from turnwise.rollouts.pack import pack
from work import branching_tree, credit, flat_tree

TREES = ("chain", "group", "branches")
WHOLE = 1 << 30


PLANS: dict[str, Callable[[Tensor], Plan]] = {
    "dense": PackedTree,
    "blocks": BlockTree,
    "runs": RunTree,
}


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    absent = {} if args.device == "cpu" else {"runs": "runs: the kernel of this plan works only on a CPU"}
    rows: list[dict[str, Any]] = []
    for kind in TREES:
        for length in args.lengths:
            end_BS = ends_of(kind, length, args.seed).to(device)
            rows.append({"tree": kind, "length": end_BS.shape[1], "asked": length, **measured(args, end_BS, absent)})
    found, in_use = threshold(rows), math.isqrt(LARGE - 1) + 1
    header = ["tree", "tokens", *(f"{name}, ms" for name in PLANS), *(f"{name}, MiB" for name in PLANS)]
    keys = [(name, key) for key in ("ms", "mib") for name in PLANS]
    cells = [[row["tree"], row["length"], *(row.get(name, {}).get(key, "") for name, key in keys)] for row in rows]
    notes = [f"not measured: {reason}" for reason in absent.values()]
    notes.append(
        f"blocks are no slower than the dense mask from {found or 'no'} tokens on; runs use them from {in_use}"
    )
    show(f"Attention, a layer of {args.shape}, {args.dtype}", header, cells, notes)
    finish("attention", args, {"threshold": found, "threshold_in_use": in_use}, {"absent": absent, "rows": rows})


def ends_of(kind: str, length: int, seed: int) -> Tensor:
    """Returns the subtree ends (1, S) of a packed row of about ``length`` tokens.

    A chain has no branch. A group is a state of half of the tokens and 16 actions. Branches are four rollouts of eight
    turns, each continued twice.
    """
    if kind == "branches":
        size = max(2, length // 80)  # 64 turns, and a state like 16 of them
        tree = branching_tree(seed, 16 * size, 4, 2, 8, size - size // 2, size // 2)
    else:
        actions = 1 if kind == "chain" else 16
        tree = flat_tree(seed, length // 2, actions, max(1, length // 2 // actions))
    return pack([tree], [credit(tree, seed)], WHOLE, WHOLE).batches[0].end_BS


def measured(args: argparse.Namespace, end_BS: Tensor, absent: dict[str, str]) -> dict[str, Any]:
    """Returns milliseconds, MiB and the difference to the dense output for every plan on one row."""
    config = config_of(args.shape)
    generator = torch.Generator().manual_seed(args.seed)
    given = [
        torch.randn(1, heads, end_BS.shape[1], config.head_dim, generator=generator)
        for heads in (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
    ]
    given = [x.to(end_BS.device, getattr(torch, args.dtype)) for x in given]
    found: dict[str, Any] = {}
    dense: Tensor | None = None
    for name, make in PLANS.items():
        if name in absent:
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
    before = begin_peak(device)
    seconds = [timed(once, device).seconds for _ in range(rounds)]
    peak = peak_since(before, device)
    ms, mib = round(1e3 * statistics.median(seconds), 4), round(peak / MIB, 1) if peak else None
    return {"ms": ms, "mib": mib, "backward": backward}, answers[0].float()


def threshold(rows: Sequence[dict[str, Any]]) -> int | None:
    """Returns the shortest length from which on blocks are never slower than the dense mask in any tree, or None. A mask
    that does not fit into memory counts as slower.
    """
    best = None
    for length in sorted({row["asked"] for row in rows}, reverse=True):
        for row in (row for row in rows if row["asked"] == length):
            blocks, dense = row.get("blocks", {}), row.get("dense", {})
            if "ms" not in blocks or not blocks["backward"] or blocks["ms"] > dense.get("ms", math.inf):
                return best
        best = length
    return best


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__, rounds=5)
    parser.set_defaults(shape="qwen3-4b")
    lengths = [256, 512, 1024, 2048, 4096, 8192, 16384]
    parser.add_argument("--lengths", type=positive, nargs="+", default=lengths, help="about the tokens of a packed row")
    return parser


if __name__ == "__main__":
    main()
