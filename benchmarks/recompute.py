"""Measures time and peak memory of an update: by default, with update.recompute, and with update.offload as well.

python benchmarks/recompute.py --device cuda --dtype bfloat16 --shape qwen3-4b
python benchmarks/recompute.py --rows 2 --row 64 --rounds 1

Each packed row is one tree of random tokens: a state of half of the row and 16 actions. A peak is the memory of one
step beyond the memory in use before the step. Without an accelerator nothing is offloaded, so that the third
measurement repeats the second.
"""

from __future__ import annotations

import argparse
from typing import Any

from common import (
    Contender,
    alternate,
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
from devices import failure, peak_operations, share, share_base
from floor import ModelSize, update_operations
from memory import device_peak, peak_of_child, say_peak
from samples import credit, flat_tree
from turnwise.rollouts.pack import pack
from turnwise.types import Credit, RolloutTree
from updates import Ours, difference

MODES = {"stored": (False, False), "recompute": (True, False), "offload": (True, True)}


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    trees, credits = work_of(args)
    if args.memory_of:
        ours = Ours(args.shape, args.dtype, device, *MODES[args.memory_of])
        small = flat_tree(args.seed, 8, 2, 2)
        step = ours.prepare([small], [credit(small, 0)], args.row)
        say_peak(step, ours.prepare(trees, credits, args.row * args.together), device)
        return
    tokens = args.row * args.together
    update = pack(trees, credits, tokens, tokens)
    parties = {mode: Ours(args.shape, args.dtype, device, *how) for mode, how in MODES.items()}
    absent: dict[str, str] = {}
    gradients = {}
    for mode, ours in parties.items():
        share_base(ours.model, parties["stored"].model)
        try:
            gradients[mode] = ours.gradients(trees, credits, tokens)
        except Exception as error:
            absent[mode] = failure(mode, error)
    kept = {mode: ours for mode, ours in parties.items() if mode in gradients}
    if not kept:
        raise SystemExit("; ".join(absent.values()))
    first = next(iter(gradients))
    apart = {mode: difference(found, gradients[first]) for mode, found in gradients.items() if mode != first}
    steps = {mode: ours.prepare(trees, credits, tokens) for mode, ours in kept.items()}

    def contender(mode: str) -> Contender:
        def once() -> float:
            steps[mode]()
            return float(update.stored_tokens)

        return Contender(mode, lambda number: timed(once, device), steps[mode])

    contenders = [contender(mode) for mode in kept]
    alternate(contenders, args.rounds)
    peaks = {
        mode: device_peak(steps[mode], device) if device.type == "cuda" else peak_of_child(__file__, mode, args)
        for mode in kept
    }
    size = ModelSize.of(parties["stored"].model.get_base_model())
    operations, peak = update_operations(update, size), peak_operations(device)
    mfu = {c.name: share(operations, c.seconds, peak) for c in contenders}
    report(args, contenders, absent, peaks, apart, mfu, update.stored_tokens)


def work_of(args: argparse.Namespace) -> tuple[list[RolloutTree], list[Credit]]:
    """Returns trees that fill a row each and share no tokens, with their credits."""
    action = max(1, args.row // 2 // 16)
    trees = [flat_tree(args.seed + row, args.row // 2, 16, action) for row in range(args.rows)]
    return trees, [credit(tree, args.seed) for tree in trees]


def report(
    args: argparse.Namespace,
    contenders: list[Contender],
    absent: dict[str, str],
    peaks: dict[str, int],
    apart: dict[str, float],
    mfu: dict[str, float | None],
    tokens: int,
) -> None:
    base = contenders[0]
    rows = contender_rows(contenders, base.name)
    for row in rows:
        row += [f"{peaks[row[0]] / 2**20:,.0f}"]
    title = f"Recomputation: {args.rows} rows of {args.row} tokens, {args.together} at a time, LoRA, {args.shape}"
    header = ["", "seconds", "tokens/s", "slowest to fastest", f"{base.name} is", "peak MiB"]
    show(title, header, rows, [f"not measured: {reason}" for reason in absent.values()])
    seconds = {c.name: c.seconds for c in contenders}
    ratios: dict[str, Any] = {
        f"x_{mode}": ratio(seconds[mode], seconds[base.name]) for mode in ("recompute", "offload") if mode in seconds
    }
    details = {
        "absent": absent,
        "unit": "tokens",
        "stored_tokens": tokens,
        "peak_bytes": peaks,
        "grad_errors": apart,
        "mfu": mfu,
        **contender_details(contenders),
    }
    finish("recompute", args, ratios, details)


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__, rounds=3)
    add = parser.add_argument
    add("--rows", type=positive, default=4)
    add("--row", type=positive, default=2048, help="approximate number of tokens of a row")
    add("--together", type=positive, default=2, help="number of rows of a micro-batch")
    add(
        "--memory-of",
        choices=list(MODES),
        default=None,
        help="run one step of this mode alone and print its peak memory",
    )
    return parser


if __name__ == "__main__":
    main()
