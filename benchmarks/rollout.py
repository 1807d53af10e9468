"""Measures the generated tokens per second of rollouts on household episodes, with Turnwise's engine and its peers.

python benchmarks/rollout.py
python benchmarks/rollout.py --tasks 1 --group 4 --horizon 3 --rounds 1 --peers trl generate
python benchmarks/rollout.py --vllm-python ~/vllm/bin/python
python benchmarks/rollout.py --device cuda --dtype bfloat16 --shape qwen3-0.6b --keep-going
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
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
    model_of,
    options,
    positive,
    prepare,
    ratio,
    show,
    timed,
    tokenizer_of,
)
from devices import begin_peak, failure, peak_bytes, peak_operations, share
from floor import Counted, ModelSize, calibrate, count
from household import Work
from peers_generate import GenerateEngine
from peers_served import Continuous, Vllm, serve, vllm_absent
from turnwise.engines.engine import Engine
from turnwise.engines.lanes import Lanes
from turnwise.methods.allocate import Uniform
from turnwise.methods.gate import Never

MEMORY_GB = 4.0  # limit in 10^9 bytes for the keys and values of the tree engine (conf/engine/tree.yaml)
KEYS = {"trl": "x_trl", "generate": "x_generate", "continuous": "x_continuous", "vllm": "x_vllm_cpu"}


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    tokenizer = tokenizer_of()
    work = Work.of(tokenizer, args.tasks, args.group, args.horizon, args.max_tokens, args.max_length, args.seed)
    # two tasks, so that the warm-up uses the second lane too
    small = Work.of(tokenizer, 2, min(2, args.group), args.horizon, args.max_tokens, args.max_length, args.seed + 1)
    model = model_of(args.shape, args.dtype, device)
    counted: list[Counted] = []
    size = ModelSize.of(model)
    peaks: list[int] = []

    def on_trees(trees: Any, peak: int) -> None:
        counted.append(count(trees, size))
        peaks.append(peak)

    contenders = [ours(args, work, small, model, on_trees)]
    absent: dict[str, str] = {}
    closing: list[Callable[[], None]] = []
    made: dict[str, Callable[[], Contender]] = {
        "trl": lambda: trl(args, work, device),
        "generate": lambda: generate(args, work, small, device),
        "continuous": lambda: continuous(args, work, small, device, closing),
        "vllm": lambda: vllm(args, work, small, device, closing),
    }
    for name, make in made.items():
        if not chosen(args, name):
            continue
        if reason := missing(args, name):
            absent[KEYS[name]] = reason
            continue
        try:
            contenders.append(make())
        except Exception as error:
            if not args.keep_going:
                raise
            absent[name] = failure(name, error)
    try:
        alternate(contenders, args.rounds, absent if args.keep_going else None)
    finally:
        for close in closing:
            close()
    report(args, work, contenders, absent, counted, peaks, device)


def missing(args: argparse.Namespace, name: str) -> str | None:
    """Returns the reason why a peer is not measured, or None."""
    if name == "trl" and find_spec("trl") is None:
        return "trl: not installed; `make test` installs it"
    return vllm_absent(args.vllm_python) if name == "vllm" else None


def ours(
    args: argparse.Namespace, work: Work, small: Work, model: Any, on_trees: Callable[[Any, int], object]
) -> Contender:
    """Measures the tree engine as a run uses it. The time includes loading the weights, as in every iteration."""
    engine = Lanes(work.chat.stop_ids, memory_gb=MEMORY_GB, lanes=args.lanes)
    measured: list[Any] = []

    def play(part: Work, number: int) -> float:
        engine.load_weights(model, number)
        player = part.player(engine)
        measured[:] = player.play(part.states, Uniform(part.group), Never(), (args.seed, number))
        return player.tally.tokens

    def run(number: int) -> Round:
        begin_peak(model.device)
        before = peak_bytes(model.device) or 0
        done = timed(lambda: play(work, number), model.device)
        on_trees(measured, (peak_bytes(model.device) or 0) - before)
        return done

    return Contender("turnwise", run, lambda: play(small, -1), "tree engine, with log-probs")


def played(name: str, engine: Engine, work: Work, small: Work, device: torch.device, note: str) -> Contender:
    """Measures a peer that implements the engine's interface, with the same player."""

    def play(part: Work, number: int) -> float:
        player = part.player(engine)
        player.play(part.states, Uniform(part.group), Never(), number)
        return player.tally.tokens

    return Contender(name, lambda number: timed(lambda: play(work, number), device), lambda: play(small, -1), note)


def generate(args: argparse.Namespace, work: Work, small: Work, device: torch.device) -> Contender:
    model = model_of(args.shape, args.dtype, device)
    engine = GenerateEngine(model, work.chat.stop_ids, tokenizer_of().pad_token_id)
    return played("generate", engine, work, small, device, "transformers generate, whole history each turn")


def continuous(
    args: argparse.Namespace, work: Work, small: Work, device: torch.device, closing: list[Callable[[], None]]
) -> Contender:
    model, sizes = model_of(args.shape, args.dtype, device), (args.continuous_rows, args.continuous_tokens)
    server = Continuous(model, work, tokenizer_of().pad_token_id, *sizes, args.continuous_block)
    closing.append(server.close)
    return Contender(
        "continuous",
        lambda number: timed(lambda: serve(server, work), device),
        lambda: serve(server, small),
        f"transformers continuous batching, {sizes[0]} requests and {sizes[1]} tokens a pass",
    )


def trl(args: argparse.Namespace, work: Work, device: torch.device) -> Contender:
    from peers_trl import Rollouts

    rollouts = Rollouts(model_of(args.shape, args.dtype, device), work)
    return Contender(
        "trl",
        lambda number: timed(rollouts.play, device),
        lambda: rollouts.play(groups=1),
        "TRL's GRPOTrainer: its environment loop over transformers generate",
    )


def vllm(
    args: argparse.Namespace, work: Work, small: Work, device: torch.device, closing: list[Callable[[], None]]
) -> Contender:
    folder = tempfile.TemporaryDirectory()
    model_of(args.shape, args.dtype, device).save_pretrained(folder.name)
    tokenizer_of().save_pretrained(folder.name)
    rows = len(work.states) * work.group
    server = Vllm(args.vllm_python, Path(folder.name), work, args.dtype, rows, args.vllm_memory)
    closing += [server.close, folder.cleanup]

    def play(part: Work) -> float:
        server.fresh()
        return serve(server, part)

    return Contender(
        "vllm", lambda number: timed(lambda: play(work), device), lambda: play(small), f"vLLM {server.version}"
    )


def report(
    args: argparse.Namespace,
    work: Work,
    contenders: list[Contender],
    absent: dict[str, str],
    counted: list[Counted],
    peaks: list[int],
    device: torch.device,
) -> None:
    base = contenders[0]
    found = {c.name: c for c in contenders[1:]}
    ratios: dict[str, Any] = {
        key: ratio(base.rate, found[name].rate) if name in found else None for name, key in KEYS.items()
    }
    step_bytes = statistics.median(c.step_bytes for c in counted)
    rates = calibrate(step_bytes, getattr(torch, args.dtype), device)
    floors = [c.seconds(rates) for c in counted]
    ratios["floor_ratio"] = ratio(
        statistics.median(r.seconds / f for r, f in zip(base.rounds, floors, strict=True)), 1.0
    )
    floor = {
        "seconds": round(statistics.median(floors), 5),
        "binds": counted[-1].binds(rates),
        "bytes": counted[-1].bytes,
        "operations": counted[-1].operations,
        "steps": counted[-1].steps,
        "bandwidth": round(rates.bandwidth),
        "operations_per_second": round(rates.operations),
    }
    rows = contender_rows(contenders, "turnwise")
    rows.append(["floor", f"{floor['seconds']:.3f}", "", "", f"{ratios['floor_ratio']:.2f} of ours / floor"])
    notes = [f"{c.name}: {c.note}" for c in contenders if c.note] + [f"not measured: {r}" for r in absent.values()]
    moved, done = (float(str(floor[name])) / 1e9 for name in ("bytes", "operations"))
    notes.append(
        f"floor: {moved:.2f} GB at {rates.bandwidth / 1e9:.1f} GB/s, {done:.1f} GFLOP at "
        f"{rates.operations / 1e9:.1f} GFLOP/s; {floor['binds']} binds"
    )
    title = f"Rollouts: {len(work.states)} tasks, G = {work.group}, horizon {work.environment.horizon}, {args.shape}"
    show(title, ["", "seconds", "tokens/s", "slowest to fastest", "ours is"], rows, notes)
    done = statistics.median(c.operations for c in counted)
    details = {
        "absent": absent,
        "floor": floor,
        "unit": "generated tokens",
        "mfu": {c.name: share(done, c.seconds, peak_operations(device)) for c in contenders},
        "peak_bytes": {"turnwise": max(peaks)} if device.type == "cuda" else {},
        **contender_details(contenders),
    }
    finish("rollout", args, ratios, details)


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("--tasks", type=positive, default=4)
    add("--group", type=positive, default=16, help="number of rollouts of a task: G")
    add("--horizon", type=positive, default=20, help="maximum number of turns of an episode")
    add("--lanes", type=positive, default=None, help="lanes of our engine (default: as in a run)")
    add("--max-tokens", type=positive, default=24, help="maximum number of tokens of an action")
    add("--max-length", type=positive, default=4096, help="maximum number of tokens of a history")
    add("--vllm-python", type=Path, default=None, metavar="FILE", help="Python interpreter that has vllm-cpu")
    add("--vllm-memory", type=float, default=0.3, metavar="SHARE", help="share of GPU memory that vLLM can use (0.3)")
    add("--continuous-rows", type=positive, default=16, help="requests of one pass of continuous batching")
    add("--continuous-tokens", type=positive, default=256, help="tokens of one pass of continuous batching")
    add("--continuous-block", type=positive, default=16, help="tokens of one cache block of continuous batching")
    return parser


if __name__ == "__main__":
    main()
