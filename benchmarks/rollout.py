"""Compares rollouts on household episodes, in generated tokens per second: our engine and the alternatives that a user
has.

python benchmarks/rollout.py
python benchmarks/rollout.py --tasks 1 --group 4 --horizon 3 --rounds 1 --peers trl generate
python benchmarks/rollout.py --vllm-python ~/vllm/bin/python
python benchmarks/rollout.py --device cuda --dtype bfloat16 --shape qwen3-0.6b
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
from floor import Counted, ModelSize, calibrate, count
from household import Work
from peers_generate import GenerateEngine
from peers_served import Continuous, Vllm, serve, vllm_absent
from turnwise.algo.allocators.uniform import Uniform
from turnwise.algo.gates.never import Never
from turnwise.engines.engine import Engine
from turnwise.engines.lanes import Lanes

KEYS = {"trl": "x_trl", "generate": "x_generate", "continuous": "x_continuous", "vllm": "x_vllm_cpu"}


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    tokenizer = tokenizer_of()
    work = Work.of(tokenizer, args.tasks, args.group, args.horizon, args.max_tokens, args.max_length, args.seed)
    small = Work.of(tokenizer, 1, min(2, args.group), args.horizon, args.max_tokens, args.max_length, args.seed + 1)
    model = model_of(args.shape, args.dtype, device)
    counted: list[Counted] = []
    size = ModelSize.of(model)
    contenders = [ours(args, work, small, model, lambda trees: counted.append(count(trees, size)))]
    absent: dict[str, str] = {}
    closing: list[Callable[[], None]] = []
    if chosen(args, "trl"):
        if find_spec("trl") is None:
            absent["x_trl"] = "trl: not installed; it is in requirements-dev.txt"
        else:
            contenders.append(trl(args, work, device))
    if chosen(args, "generate"):
        engine = GenerateEngine(model_of(args.shape, args.dtype, device), work.chat.stop_ids, tokenizer.pad_token_id)
        contenders.append(
            played("generate", engine, work, small, device, "transformers generate, whole history each turn")
        )
    if chosen(args, "continuous"):
        peer = model_of(args.shape, args.dtype, device)
        server = Continuous(
            peer, work, tokenizer.pad_token_id, args.continuous_rows, args.continuous_tokens, args.continuous_block
        )
        closing.append(server.close)
        contenders.append(
            Contender(
                "continuous",
                lambda number: timed(lambda: serve(server, work), device),
                lambda: serve(server, small),
                f"transformers continuous batching, {args.continuous_rows} requests and {args.continuous_tokens} tokens a pass",
            )
        )
    if chosen(args, "vllm"):
        reason = vllm_absent(args.vllm_python)
        if reason:
            absent["x_vllm_cpu"] = reason
        else:
            contenders.append(vllm(args, work, small, device, closing))
    try:
        alternate(contenders, args.rounds)
    finally:
        for close in closing:
            close()
    report(args, work, contenders, absent, counted, device)


def ours(args: argparse.Namespace, work: Work, small: Work, model: Any, on_trees: Callable[[Any], object]) -> Contender:
    """Measures the tree engine as a run uses it. Loading the weights is part of the measured time, as in every
    iteration.
    """
    engine = Lanes(work.chat.stop_ids)
    measured: list[Any] = []

    def play(part: Work, number: int) -> float:
        engine.load_weights(model, number)
        player = part.player(engine)
        measured[:] = player.play(part.states, Uniform(part.group), Never(), (args.seed, number))
        return player.tally.tokens

    def run(number: int) -> Round:
        done = timed(lambda: play(work, number), model.device)
        on_trees(measured)
        return done

    return Contender("turnwise", run, lambda: play(small, -1), "tree engine, with log-probs")


def played(name: str, engine: Engine, work: Work, small: Work, device: torch.device, note: str) -> Contender:
    """Measures a peer that has the engine's interface and is driven by the same player."""

    def play(part: Work, number: int) -> float:
        player = part.player(engine)
        player.play(part.states, Uniform(part.group), Never(), number)
        return player.tally.tokens

    return Contender(name, lambda number: timed(lambda: play(work, number), device), lambda: play(small, -1), note)


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
    server = Vllm(args.vllm_python, Path(folder.name), work, args.dtype, len(work.states) * work.group)
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
    device: torch.device,
) -> None:
    """Reports the ratios, the floor, the table and the last line."""
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
    details = {"absent": absent, "floor": floor, "unit": "generated tokens", **contender_details(contenders)}
    finish("rollout", args, ratios, details)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = options(__doc__)
    add = parser.add_argument
    add("--tasks", type=positive, default=4)
    add("--group", type=positive, default=16, help="rollouts a task: G")
    add("--horizon", type=positive, default=20, help="turns of an episode")
    add("--max-tokens", type=positive, default=24, help="most tokens of an action")
    add("--max-length", type=positive, default=4096, help="most tokens of a history")
    add("--vllm-python", type=Path, default=None, metavar="FILE", help="Python interpreter that has vllm-cpu")
    add("--continuous-rows", type=positive, default=16, help="most requests in one pass of continuous batching")
    add("--continuous-tokens", type=positive, default=256, help="most tokens in one pass of continuous batching")
    add("--continuous-block", type=positive, default=16, help="tokens of one cache block of continuous batching")
    return parser


if __name__ == "__main__":
    main()
