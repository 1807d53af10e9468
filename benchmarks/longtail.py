"""Rollouts whose replies and environments have long tails: what each schedule of the engine and each staleness takes.

    python benchmarks/longtail.py                       a server whose tokens take time (slow_server.py), about three minutes
    python benchmarks/longtail.py --engine vllm         vLLM's own CPU build, over a small random policy
    python benchmarks/longtail.py --engine tree         the engine of this process, over the same policy

The player is a run's own; the trainer is a wait of ``--update`` seconds, and the queue between both is this program's. With
``--engine stub`` lengths are log-normal and cut off. Tails, rates and latencies are assumptions: we know of no published
numbers of agents that hold all of them. The default sizes were chosen among eight in the simulator (docs/scaling.md). A real
policy is random and may end at any of a few tokens, so its lengths are geometric.

Last line:

x_rounds                   wall-clock of collections under rounds, over the same under free
x_staleness                an iteration's wall-clock at staleness 0 over that at 0, 1 and 2, all under free
bound_ratio                an iteration's at staleness 1 over the largest of work at full rate, longest chain and update
cancelled_tokens_pct       tokens that the divergence gate spares under free, where it cancels what is being decoded
uncancelled_tokens_pct     what it would spare there if these actions were decoded to their ends
between_rounds_tokens_pct  what it spares under rounds, where no rollout is past the gate's turn when the gate looks
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from common import finish, options, prepare, ratio, show
from longtail_engines import opened
from slow_world import Words, World, played, states
from turnwise.algo.allocators.uniform import Uniform
from turnwise.algo.gates.divergence import Divergence
from turnwise.algo.gates.gate import Gate
from turnwise.algo.gates.never import Never
from turnwise.engines.engine import Sampling
from turnwise.planning.pace import Pace
from turnwise.planning.schedules import Played, Schedule, Site, play
from turnwise.planning.simulation import bound
from turnwise.planning.workload import Group
from turnwise.rollouts.play import Player, Tally

DISTINCT = 1000  # actions; a random policy has two, or no two of its rollouts would ever act alike
THRESHOLD = 0.12  # of the divergence gate (arXiv:2605.05802, Table 1); rollouts with two random actions are at 0.5


@dataclass(slots=True)
class Found:
    """What one way of playing took: times since its start in seconds, what it played, and what the server counted in tokens."""

    played: Played
    seconds: list[float] = field(default_factory=list)  # of each collection
    work: list[list[Group]] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)


@dataclass(slots=True)
class Bench:
    """Args:
    args: of the program.
    engine: that samples; its ``schedule`` is set for each measurement.
    counts: reads the tokens that were decoded, thrown away and saved since the start; None where nobody counts.
    """

    args: argparse.Namespace
    engine: Any
    counts: Callable[[], dict[str, float]] | None

    def measure(self, schedule: Schedule, iterations: int, gate: Gate | None = None) -> Found:
        """Plays and "trains" so many iterations: a thread collects, at most ``staleness`` collections ahead."""
        args = self.args
        self.engine.schedule = "free" if schedule.free else "rounds"
        world: Any = World(args.least, args.turns, args.horizon, args.latency, args.sigma)
        player = Player(
            self.engine,
            world,
            Words(DISTINCT if args.engine == "stub" else 2),
            Sampling(max_tokens=args.max_tokens),
            max_length=args.max_length,
            environment_threads=args.groups * args.group,
        )
        found, moved = Found(Played(schedule.staleness), tally=player.tally), threading.Condition()
        before = self.counts() if self.counts else {}
        began = time.perf_counter()

        def collect(number: int) -> None:
            with moved:
                moved.wait_for(lambda: len(found.played.updated) >= number - schedule.staleness)
            start = time.perf_counter()
            trees = player.play(
                states(number, args.groups, args.alike), Uniform(args.group), gate or Never(), (args.seed, number)
            )
            with moved:
                found.seconds.append(time.perf_counter() - start)
                found.work.append(played(trees, world))
                found.played.collected.append(time.perf_counter() - began)
                moved.notify_all()

        failed: list[BaseException] = []

        def collector() -> None:
            try:
                for number in range(iterations):
                    collect(number)
            except BaseException as error:
                failed.append(error)
                with moved:
                    moved.notify_all()

        thread = threading.Thread(target=collector, daemon=True)
        thread.start()
        for number in range(iterations):
            with moved:
                while len(found.played.collected) <= number and not failed:
                    moved.wait()
            if failed:
                raise failed[0]
            time.sleep(args.update)
            with moved:
                found.played.updated.append(time.perf_counter() - began)
                moved.notify_all()
        thread.join()
        if self.counts:
            now = self.counts()
            found.played.decoded, found.played.thrown, found.played.saved = (
                now[name] - before[name] for name in ("decoded", "thrown", "saved")
            )
        else:
            found.played.decoded = found.tally.tokens + found.tally.cancelled_tokens
            found.played.thrown = found.tally.cancelled_tokens
        return found


def main() -> int:
    args = parser().parse_args()
    prepare(args)
    with tempfile.TemporaryDirectory() as folder, opened(args, Path(folder)) as (engine, counts):
        bench = Bench(args, engine, counts)
        ways = {
            str(way): bench.measure(way, args.iterations)
            for way in (Schedule(True), Schedule(True, 1), Schedule(True, 2))
        }
        rounds = bench.measure(Schedule(False), args.rounds)
        gate = Divergence(args.gate_step, THRESHOLD if args.engine == "stub" else 0.45)
        cut = {str(way): bench.measure(way, args.rounds, gate) for way in (Schedule(False), Schedule(True))}
    report(args, ways, rounds, cut)
    return 0


def report(args: argparse.Namespace, ways: dict[str, Found], rounds: Found, cut: dict[str, Found]) -> None:
    """Prints the table and the last line."""
    free, ahead, further = ways.values()
    same = min(len(rounds.seconds), len(free.seconds))
    asked = sum(tokens(work) for work in free.work[:same])
    gated_rounds, gated = cut.values()
    absent: dict[str, str] = {}
    details: dict[str, Any] = {"absent": absent}
    ratios: dict[str, Any] = {
        "x_rounds": ratio(sum(rounds.seconds[:same]), sum(free.seconds[:same])),
        "x_staleness": {
            str(k): ratio(free.played.iteration, found.played.iteration)
            for k, found in enumerate((free, ahead, further))
        },
        "between_rounds_tokens_pct": spared(gated_rounds.played.decoded, asked),
        "cancelled_tokens_pct": spared(gated.played.decoded, asked),
    }
    if args.engine == "stub":
        site = site_of(args)
        last = ahead.work[ahead.played.first + 1 :]
        ratios["bound_ratio"] = ratio(ahead.played.iteration, bound(last, site, Schedule(True, 1)))
        ratios["uncancelled_tokens_pct"] = spared(gated.played.decoded + gated.played.saved, asked)
        details["simulated"] = {
            str(way): {"measured_s": found.played.updated[-1], "simulated_s": play(found.work, site, way).updated[-1]}
            for way, found in zip(
                (Schedule(False), Schedule(True), Schedule(True, 1), Schedule(True, 2)),
                (rounds, free, ahead, further),
                strict=True,
            )
        }
    else:
        absent["bound_ratio"] = absent["uncancelled_tokens_pct"] = "nothing says at what rate this engine writes"
        ratios["bound_ratio"] = ratios["uncancelled_tokens_pct"] = None
    named = {"rounds, staleness 0": rounds, **ways, **{f"{name}, gate": found for name, found in cut.items()}}
    details["ways"] = {name: record(found) for name, found in named.items()}
    rows = [
        [
            name,
            f"{fmean(found.seconds):.2f}",
            f"{found.played.iteration:.2f}",
            f"{found.played.decoded:,.0f}",
            f"{found.played.thrown:,.0f}",
        ]
        for name, found in named.items()
    ]
    show("Long tails", ["way", "a collection, s", "an iteration, s", "tokens decoded", "thrown away"], rows)
    finish("longtail", args, ratios, details)


def record(found: Found) -> dict[str, Any]:
    """Returns one way of playing, for the record."""
    had = found.played
    return {
        "collections_s": [round(value, 3) for value in found.seconds],
        "updated_s": [round(value, 3) for value in had.updated],
        "turns": found.tally.turns,
        "decoded": had.decoded,
        "thrown": had.thrown,
        "cancelled": found.tally.cancelled,
    }


def tokens(groups: Sequence[Group]) -> int:
    """Returns the tokens of all replies."""
    return sum(count for group in groups for rollout in group.rollouts for count, _ in rollout)


def spared(decoded: float, asked: float) -> float:
    """Returns the share of the tokens that were not decoded, in percent."""
    return round(100 * (1 - decoded / asked), 2)


def site_of(args: argparse.Namespace) -> Site:
    """Returns the stub as a simulation knows it."""
    return Site(Pace.halving(args.first, args.half), 1, args.places, 1, 1, args.update, 0.0)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = options(__doc__, rounds=2)
    add = found.add_argument
    add("--engine", choices=["stub", "vllm", "tree"], default="stub")
    add("--vllm-python", default=".venv-vllm/bin/python", help="of the environment with vLLM (%(default)s)")
    add(
        "--iterations",
        type=int,
        default=4,
        help="under free; --rounds of them under rounds and with the gate (%(default)s)",
    )
    add("--groups", type=int, default=8, help="of a collection (%(default)s)")
    add("--group", type=int, default=8, help="rollouts of a group (%(default)s)")
    add("--least", type=int, default=3, help="turns of a rollout (%(default)s)")
    add("--turns", type=float, default=6.0, help="mean; beyond the least their number is geometric (%(default)s)")
    add("--horizon", type=int, default=16, help="most turns (%(default)s)")
    add("--reply", type=float, default=40.0, help="tokens, mean (%(default)s)")
    add("--max-tokens", type=int, default=400, help="of a reply (%(default)s)")
    add("--max-length", type=int, default=8192, help="of a history (%(default)s)")
    add("--latency", type=float, default=0.1, help="s of the environment, mean (%(default)s)")
    add("--sigma", type=float, default=1.0, help="of the logarithms of replies and latencies (%(default)s)")
    add("--update", type=float, default=1.0, help="s (%(default)s)")
    add("--first", type=float, default=300.0, help="of the stub: tokens a second of a request alone (%(default)s)")
    add("--half", type=float, default=64.0, help="of the stub: requests at which each has half of it (%(default)s)")
    add("--places", type=int, default=64, help="requests decoded together, of a server (%(default)s)")
    add("--alike", type=float, default=0.5, help="share of the groups whose rollouts act alike (%(default)s)")
    add("--gate-step", type=int, default=2, help="turn after which the gate looks (%(default)s)")
    return found


if __name__ == "__main__":
    sys.exit(main())
