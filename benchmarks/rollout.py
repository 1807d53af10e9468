"""Measures the generated tokens per second of rollouts on household episodes, with Turnwise's engine and its peers.

python benchmarks/rollout.py
python benchmarks/rollout.py --tasks 1 --group 4 --horizon 3 --rounds 1 --peers trl generate
python benchmarks/rollout.py --vllm-python ~/vllm/bin/python
python benchmarks/rollout.py --model outputs/models/SmolLM2-135M-Instruct --llama-server llama-server --gguf SmolLM2.gguf
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
    SHAPES,
    Contender,
    Round,
    alternate,
    begin_peak,
    chosen,
    contender_details,
    contender_rows,
    failure,
    finish,
    model_of,
    options,
    peak_since,
    positive,
    prepare,
    ratio,
    show,
    timed,
    tokenizer_of,
)
from floor import Counted, ModelSize, calibrate, count
from peers import Continuous, GenerateEngine, Llama, Vllm, serve, vllm_absent
from turnwise.engines.lanes import Lanes
from turnwise.methods.allocate import Uniform
from turnwise.methods.gate import Never
from turnwise.types import RolloutTree
from work import Work

MEMORY_GB = 4.0  # limit in 10^9 bytes for the keys and values of the tree engine (conf/engine/tree.yaml)
KEYS = {
    "weights": "x_float16_weights",
    "trl": "x_trl",
    "generate": "x_generate",
    "continuous": "x_continuous",
    "vllm": "x_vllm_cpu",
    "llama": "x_llama_cpp",
}


class Rollouts:
    """The same episodes by every contender: ``work`` is timed, ``small`` warms up."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        sizes = args.horizon, args.max_tokens, args.max_length
        self.args, self.device, self.tokenizer = args, device, tokenizer_of(args.shape)
        self.work = Work.of(self.tokenizer, args.tasks, args.group, *sizes, args.seed)
        # two tasks, so that the warm-up uses the second lane too
        self.small = Work.of(self.tokenizer, 2, min(2, args.group), *sizes, args.seed + 1)
        self.peaks: list[int] = []
        self.counted: list[Counted] = []  # the least work of each of our rounds
        self.closing: list[Callable[[], object]] = []

    def model(self) -> Any:
        return model_of(self.args.shape, self.args.dtype, self.device)

    def contender(self, name: str, play: Callable[[Work, int], float], note: str) -> Contender:
        timing = lambda number: timed(lambda: play(self.work, number), self.device)  # noqa: E731
        return Contender(name, timing, lambda: play(self.small, -1), note)

    def turnwise(self) -> Contender:
        """Measures the tree engine as a run uses it. The time includes loading the weights, as in every iteration."""
        model, trees = self.model(), list[RolloutTree]()
        play, size = self.engine(model, trees), ModelSize.of(model)

        def run(number: int) -> Round:
            before = begin_peak(self.device)
            done = timed(lambda: play(self.work, number), self.device)
            self.peaks.append(peak_since(before, self.device))
            self.counted.append(count(trees, size))
            return done

        return Contender("turnwise", run, lambda: play(self.small, -1), "tree engine, with log-probs")

    def weights(self) -> Contender:
        play = self.engine(self.model(), [], weights="float16")
        return self.contender("weights", play, "tree engine, engine.weights=float16, with log-probs")

    def engine(self, model: Any, trees: list[RolloutTree], **options: Any) -> Callable[[Work, int], float]:
        engine = Lanes(self.work.chat.stop_ids, memory_gb=MEMORY_GB, lanes=self.args.lanes, **options)

        def play(work: Work, number: int) -> float:
            engine.load_weights(model, number)
            player = work.player(engine)
            trees[:] = player.play(work.states, Uniform(work.group), Never(), (self.args.seed, number))
            return player.tally.tokens

        return play

    def generate(self) -> Contender:
        engine = GenerateEngine(self.model(), self.work.chat.stop_ids, self.tokenizer.pad_token_id)

        def play(work: Work, number: int) -> float:
            player = work.player(engine)
            player.play(work.states, Uniform(work.group), Never(), number)
            return player.tally.tokens

        return self.contender("generate", play, "transformers generate, whole history each turn")

    def continuous(self) -> Contender:
        rows, tokens = self.args.continuous_rows, self.args.continuous_tokens
        block = self.args.continuous_block
        server = Continuous(self.model(), self.work, self.tokenizer.pad_token_id, rows, tokens, block)

        def run(number: int) -> Round:
            with server.started():
                return timed(lambda: serve(server, self.work), self.device)

        def warm() -> None:
            with server.started():
                serve(server, self.small)

        note = f"transformers continuous batching, {rows} requests and {tokens} tokens a pass"
        return Contender("continuous", run, warm, note)

    def trl(self) -> Contender:
        from peers_trl import Rollouts as Trl

        rollouts = Trl(self.model(), self.work)
        run = lambda number: timed(rollouts.play, self.device)  # noqa: E731
        note = "TRL's GRPOTrainer: its environment loop over transformers generate"
        return Contender("trl", run, lambda: rollouts.play(groups=1), note)

    def vllm(self) -> Contender:
        folder = tempfile.TemporaryDirectory()
        self.model().save_pretrained(folder.name)
        self.tokenizer.save_pretrained(folder.name)
        rows, place = len(self.work.states) * self.work.group, Path(folder.name)
        server = Vllm(self.args.vllm_python, place, self.work, self.args.dtype, rows, self.args.vllm_memory)
        self.closing += [server.close, folder.cleanup]

        def play(work: Work, number: int) -> float:
            server.fresh()
            return serve(server, work)

        return self.contender("vllm", play, f"vLLM {server.version}, with log-probs")

    def llama(self) -> Contender:
        rows = len(self.work.states) * self.work.group
        server = Llama(self.args.llama_server, self.args.gguf, self.work, rows)
        self.closing.append(server.close)

        def play(work: Work, number: int) -> float:
            server.fresh()
            return serve(server, work)

        return self.contender("llama", play, f"llama.cpp's server, {self.args.gguf.name}, with log-probs")

    def missing(self, name: str) -> str | None:
        """Returns the reason why a peer is not measured, or None."""
        if name == "weights" and (self.args.dtype != "float32" or self.args.device != "cpu"):
            return "weights: engine.weights=float16 is for float32 weights on a CPU"
        if name == "trl" and find_spec("trl") is None:
            return "trl: not installed; `make test` installs it"
        if name == "trl" and self.args.shape not in ("tiny", *SHAPES):
            return "trl: its loop plays with the shipped tokenizer only"
        if name == "llama" and not (self.args.llama_server and self.args.gguf):
            return "llama.cpp: give its server with --llama-server and the model's file with --gguf"
        return vllm_absent(self.args.vllm_python) if name == "vllm" else None


def main() -> None:
    args = parser().parse_args()
    rollouts = Rollouts(args, prepare(args))
    contenders, absent = [rollouts.turnwise()], dict[str, str]()
    for name in KEYS:
        if not chosen(args, name):
            continue
        if reason := rollouts.missing(name):
            absent[KEYS[name]] = reason
            continue
        try:
            contenders.append(getattr(rollouts, name)())
        except Exception as error:
            if not args.keep_going:
                raise
            absent[name] = failure(name, error)
    try:
        alternate(contenders, args.rounds, absent if args.keep_going else None)
    finally:
        for close in rollouts.closing:
            close()
    report(rollouts, contenders, absent)


def report(rollouts: Rollouts, contenders: list[Contender], absent: dict[str, str]) -> None:
    args, work = rollouts.args, rollouts.work
    rate = {c.name: c.rate for c in contenders}
    ratios = {key: ratio(contenders[0].rate, rate[name]) if name in rate else None for name, key in KEYS.items()}
    counted = rollouts.counted
    rates = calibrate(statistics.median(c.step_bytes for c in counted), getattr(torch, args.dtype), rollouts.device)
    floors = [c.seconds(rates) for c in counted]
    ratios["floor_ratio"] = ratio(
        statistics.median(r.seconds / f for r, f in zip(contenders[0].rounds, floors, strict=True)), 1.0
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
    title = f"Rollouts: {len(work.states)} tasks, G = {work.group}, horizon {work.environment.horizon}, {args.shape}"
    header = ["", "seconds", "tokens/s", "slowest to fastest", "ours is"]
    show(title, header, rows, notes)
    peaks = {"turnwise": max(rollouts.peaks)} if args.device == "cuda" else {}
    details = {
        "absent": absent,
        "floor": floor,
        "unit": "generated tokens",
        "peak_bytes": peaks,
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
    add("--llama-server", type=Path, default=None, metavar="FILE", help="llama.cpp's llama-server")
    add("--gguf", type=Path, default=None, metavar="FILE", help="the same model as llama.cpp reads it")
    add("--continuous-rows", type=positive, default=16, help="requests of one pass of continuous batching")
    add("--continuous-tokens", type=positive, default=256, help="tokens of one pass of continuous batching")
    add("--continuous-block", type=positive, default=16, help="tokens of one cache block of continuous batching")
    return parser


if __name__ == "__main__":
    main()
