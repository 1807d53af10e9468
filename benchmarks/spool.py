"""Measures the cost of saving a collection's samples, and the time that they save after a run was killed.

python benchmarks/spool.py
python benchmarks/spool.py --tasks 4 --group 4 --horizon 6 --rounds 2

The numbers are CPU seconds of this process, with one lane of the engine. The cost is measured on the calls of a
collection to an engine that does nothing, with and without saving: compared with real sampling, the cost would be
smaller than the noise of the machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import finish, model_of, options, positive, prepare, ratio, show, tokenizer_of
from household import Work
from idle import Idle
from turnwise.algo.allocators.uniform import Uniform
from turnwise.algo.gates.never import Never
from turnwise.engines.engine import Engine, Sample, Sampling, Told
from turnwise.engines.lanes import Lanes
from turnwise.engines.spool_file import Spool
from turnwise.engines.spooled_engine import Spooled

CALLS = 20  # repetitions of work that takes milliseconds


class Killed(Exception):
    """Raised where the run is to be killed."""


class Traced:
    """Wraps an engine: records the requests and the samples, and raises ``Killed`` before its ``last``-th batch."""

    def __init__(self, engine: Engine, last: int | None = None) -> None:
        self.engine, self.last, self.version = engine, last, 0
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.turns: list[list[Sample]] = []

    def load_weights(self, model: Any, version: int) -> None:
        self.engine.load_weights(model, version)

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        self.calls.append(("open", (list(ids), near)))
        return self.engine.open(ids, near)

    def fork(self, node: int) -> int:
        self.calls.append(("fork", (node,)))
        return self.engine.fork(node)

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self.calls.append(("extend", (node, list(ids))))
        self.engine.extend(node, ids)

    def close(self, nodes: Sequence[int]) -> None:
        self.calls.append(("close", (list(nodes),)))
        self.engine.close(nodes)

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        if len(self.turns) == self.last:
            raise Killed
        self.calls.append(("sample", (list(nodes), sampling, list(seeds))))
        self.turns.append(self.engine.sample(nodes, sampling, seeds, on_sample))
        return self.turns[-1]

    def report(self) -> Mapping[str, float]:
        return self.engine.report()

    def shutdown(self) -> None: ...


class Known(Idle):
    """An engine that returns samples that were drawn before."""

    def __init__(self, turns: Sequence[list[Sample]]) -> None:
        super().__init__()
        self.turns = turns

    def load_weights(self, model: Any, version: int) -> None:
        super().load_weights(model, version)
        self.left = iter(self.turns)

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        return next(self.left)


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    tokenizer = tokenizer_of()
    work = Work.of(tokenizer, args.tasks, args.group, args.horizon, args.max_tokens, args.max_length, args.seed)
    model = model_of(args.shape, args.dtype, device)
    engine = Lanes(work.chat.stop_ids, lanes=1)

    def play(player: Any) -> float:
        began = time.process_time()
        player.load_weights(model, 0)
        work.player(player).play(work.states, Uniform(args.group), Never(), (args.seed, 0))
        return time.process_time() - began

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.bin"

        def over(inner: Any, exact: bool = True) -> Spooled:
            return Spooled(inner, [Spool(path, "benchmark")], exact, lambda line: None)

        def asked(player: Any) -> float:
            path.unlink(missing_ok=True)
            began = time.process_time()
            player.load_weights(model, 0)
            for name, given in whole.calls:
                getattr(player, name)(*given)
            return time.process_time() - began

        whole = Traced(engine)
        play(whole)
        actions = sum(map(len, whole.turns))
        seconds = {"plain": best(args.rounds, lambda: play(engine))}
        known = Known(whole.turns)
        bare = best(CALLS, lambda: asked(known))
        kept = best(CALLS, lambda: asked(over(known)))
        size = path.stat().st_size
        for name, exact, last in (
            ("exact, killed half-way", True, len(whole.turns) // 2),
            ("quick, killed half-way", False, len(whole.turns) // 2),
            ("killed when all was sampled", True, None),
        ):
            seconds[name] = best(args.rounds, lambda: resumed(path, over, play, engine, exact, last))  # noqa: B023
    cost = (kept - bare) / seconds["plain"]
    rows = [[name, f"{value:.3f}", f"{value / seconds['plain']:.2f}"] for name, value in seconds.items()]
    notes = [
        f"{actions:,} actions of {len(whole.turns)} turns, {size:,} bytes",
        f"cost of storing these actions: {1e3 * (kept - bare):.1f} ms of CPU time, {100 * cost:.2f} % of a collection",
    ]
    show(f"Spool: {args.tasks} tasks, G = {args.group}, horizon {args.horizon}", ["", "CPU s", "of plain"], rows, notes)
    ratios = {
        "cost": ratio(kept - bare, seconds["plain"]),
        "exact": ratio(seconds["exact, killed half-way"], seconds["plain"]),
        "quick": ratio(seconds["quick, killed half-way"], seconds["plain"]),
        "whole": ratio(seconds["killed when all was sampled"], seconds["plain"]),
    }
    finish("spool", args, ratios, {"absent": {}, "seconds": seconds, "bytes": size, "cost_seconds": kept - bare})


def best(rounds: int, measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(rounds))


def resumed(
    path: Path,
    over: Callable[..., Spooled],
    play: Callable[[Any], float],
    engine: Engine,
    exact: bool,
    last: int | None,
) -> float:
    """Returns the CPU seconds of a collection that resumes a collection that was killed.

    It was killed before its ``last``-th batch, or after all batches if ``last`` is None.
    """
    path.unlink(missing_ok=True)
    first = over(Traced(engine, last), exact)
    with suppress(Killed):
        play(first)
    first.spools[0].close()
    return play(over(engine, exact))


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("--tasks", type=positive, default=32)
    add("--group", type=positive, default=16)
    add("--horizon", type=positive, default=20, help="maximum number of turns of an episode")
    add("--max-tokens", type=positive, default=24, help="maximum number of tokens of an action")
    add("--max-length", type=positive, default=4096, help="maximum number of tokens of a history")
    return parser


if __name__ == "__main__":
    main()
