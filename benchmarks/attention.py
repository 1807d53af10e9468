"""Measures attention over packed trees by all plans: one layer, forward and backward, for several lengths and trees.

python benchmarks/attention.py --device cuda --dtype bfloat16
python benchmarks/attention.py --lengths 64 128 --rounds 1

    dense      a mask of all pairs (models/attention.py)
    blocks     flex attention by blocks (models/attention_gpu.py): CUDA; on a CPU only the forward pass is timed
    gathered   variable-length FlashAttention over the gathered keys of each path, as in TRL's packed trie
    runs       torch's CPU kernel, piece by piece (models/attention_cpu.py): CPU

All plans get the same queries, keys and values; `apart` is the largest difference to the output of the dense plan. The
threshold is the shortest length from which on blocks are never slower than the dense mask. A training run uses blocks
from the length that LARGE in models/packed_logprobs.py sets.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from common import MIB, begin_peak, config_of, failure, finish, options, peak_since, positive, prepare, show, timed
from turnwise.models.attention import PLAIN, OfTrees, PackedTree, Plan, Rules
from turnwise.models.attention_cpu import RunTree
from turnwise.models.attention_gpu import BlockTree
from turnwise.models.packed_logprobs import LARGE
from turnwise.rollouts.pack import pack
from work import branching_tree, credit, flat_tree

TREES = ("chain", "group", "branches")
WHOLE = 1 << 30


class GatheredTree(OfTrees):
    """An attention plan for one packed row without padding, ``end_BS`` of shape (1, S): the keys and values of every path
    are gathered side by side, and one call computes the attention of each stretch of tokens without a branch.
    """

    def __init__(self, end_BS: Tensor) -> None:
        if len(end_BS) != 1 or not bool((end_BS > 0).all()):
            raise ValueError(f"the input must be one row without padding, got {tuple(end_BS.shape)}")
        self.end = end_BS
        starts, paths = stretches(end_BS[0].tolist())
        lengths = [0, *(len(path) for path in paths)]
        device = end_BS.device
        self.index_K = torch.tensor([place for path in paths for place in path], device=device)
        self.queries = torch.tensor(starts, dtype=torch.int32, device=device)
        self.keys = torch.tensor(lengths, device=device).cumsum(0).to(torch.int32)
        self.longest = max(b - a for a, b in itertools.pairwise(starts)), max(lengths)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        if rules is not PLAIN:
            raise ValueError("only plain attention is computed here")
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # (S, heads, D)
        gathered = (k.index_select(0, self.index_K), v.index_select(0, self.index_K))
        return variable(q, *gathered, self.queries, self.keys, *self.longest, scaling).transpose(0, 1)[None]


PLANS: dict[str, Callable[[Tensor], Plan]] = {
    "dense": PackedTree,
    "blocks": BlockTree,
    "gathered": GatheredTree,
    "runs": RunTree,
}


def stretches(end: list[int]) -> tuple[list[int], list[list[int]]]:
    """Returns the first token of each stretch (followed by the end of the last stretch), and the tokens that it reads.

    A stretch reads its path, including itself. ``end`` holds for every token, in depth-first order, the index one past
    its last descendant.
    """
    starts: list[int] = []
    paths: list[list[int]] = []
    above: list[tuple[int, list[int]]] = []  # end of the subtree and path of every stretch that is still open
    place = 0
    while place < len(end):
        while above and above[-1][0] <= place:
            above.pop()
        last = place + 1
        while last < len(end) and end[last - 1] > last and end[last] == end[place]:
            last += 1
        path = [*(above[-1][1] if above else []), *range(place, last)]
        starts.append(place)
        paths.append(path)
        above.append((end[place], path))
        place = last
    return [*starts, len(end)], paths


def variable(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, most_q: int, most_k: int, scaling: float
) -> Tensor:
    """Returns causal attention of each stretch over the keys of its path, aligned at their ends.

    On CUDA this is torch's variable-length FlashAttention. On a CPU there is none: torch's attention is called for each
    stretch, to test the layout, and its time is no measurement.

    Args:
        q: (S, H, D).
        k, v: (K, H_kv, D), the paths side by side.
        queries, keys: int32 indices at which stretches and paths begin, followed by the end of the last of them.
        most_q, most_k: number of tokens of the longest stretch and of the longest path.
    """
    if q.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        # torch 2.13 has an argument that says that queries share the heads of keys; torch 2.11 detects this by itself
        grouped = q.shape[1] != k.shape[1] and "enable_gqa" in signature(varlen_attn).parameters
        more: dict[str, Any] = {"enable_gqa": True} if grouped else {}
        out: Any = varlen_attn(
            q.contiguous(), k, v, queries, keys, most_q, most_k, scale=scaling, window_size=(-1, 0), **more
        )
        return out  # type: ignore[no-any-return]
    parts = []
    for q0, q1, k0, k1 in zip(queries.tolist(), queries.tolist()[1:], keys.tolist(), keys.tolist()[1:]):
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(k1 - k0 - (q1 - q0))
        one, other, third = (x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        answer = F.scaled_dot_product_attention(one, other, third, seen, scale=scaling, enable_gqa=True)
        parts.append(answer[0].transpose(0, 1))
    return torch.cat(parts)


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
