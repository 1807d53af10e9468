"""Measures rollouts with long tails of replies and answers, under each schedule of the engine and each staleness.

    python benchmarks/longtail.py                  a server whose tokens take time (slow_server.py), about six minutes
    python benchmarks/longtail.py --engine vllm    vLLM's own CPU build, with a small random policy
    python benchmarks/longtail.py --engine tree    the in-process engine, with the same policy

The player is that of a run. The trainer is a wait of ``--update`` seconds, and the queue between the two belongs to
this program. Lengths are log-normal with an upper limit. The simulated server draws them; with vLLM, this program draws
the length of each reply and asks for that many tokens. Tails, rates and latencies are assumptions: we know of no
published numbers of agents that contain all of them. The default sizes were chosen among eight in the simulator
(docs/scaling.md). With ``--engine tree`` the random policy may end at any of a few tokens, so that its lengths are
geometric.

Last line:

x_rounds                   wall-clock time of collections under rounds, divided by that of the same collections under
                           free
x_staleness                wall-clock time of an iteration at staleness 0 divided by that at 0, 1 and 2, all under free,
                           one collection after the other
x_beside                   the same divided by that at 1 and 2 with collections side by side, as in a run with servers
bound_ratio                time of an iteration at staleness 1 divided by the largest of: work at full rate, longest
                           chain, update
beside_bound_ratio         the same side by side, where two collections and an update may overlap
                           (planning/simulation.py)
cancelled_tokens_pct       tokens that the divergence gate saves under free, where it cancels actions during decoding
uncancelled_tokens_pct     tokens that it would save there if these actions were decoded to their ends
between_rounds_tokens_pct  tokens that it saves under rounds, where no rollout is past the gate's turn when the gate
                           decides
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
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
from turnwise.console import number as number_from
from turnwise.engines.engine import Sampling
from turnwise.planning.decoding_pace import Pace
from turnwise.planning.simulated_engine import Site
from turnwise.planning.simulated_rollouts import Group
from turnwise.planning.simulated_schedules import Played, Schedule, play
from turnwise.planning.simulation import bound
from turnwise.rollouts.player import Player, Tally

DISTINCT = 1000  # number of actions; a random policy gets only two, because otherwise no two rollouts would act alike
THRESHOLD = 0.12  # of the divergence gate (arXiv:2605.05802, Table 1); rollouts with two random actions have about 0.5


@dataclass(slots=True)
class Found:
    """The times of one measurement in seconds since its start, and the groups and tokens of each collection."""

    played: Played
    seconds: dict[int, float] = field(default_factory=dict)
    work: dict[int, list[Group]] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)
    tally: Counter[str] = field(default_factory=Counter)
    tokens: dict[str, float] = field(default_factory=dict)  # tokens decoded, thrown away and saved


@dataclass(slots=True)
class Bench:
    """Measures one engine.

    Args:
        args: the options of the program.
        engine: the engine that samples; its ``schedule`` is set for each measurement.
        counts: returns the numbers of decoded, discarded and saved tokens since the start; None: they are not counted.
    """

    args: argparse.Namespace
    engine: Any
    counts: Callable[[], dict[str, float]] | None

    def measure(self, schedule: Schedule, iterations: int, gate: Gate | None = None) -> Found:
        """Plays and "trains" ``iterations`` iterations. Threads collect at most ``staleness`` collections ahead."""
        args = self.args
        self.engine.schedule = "free" if schedule.free else "rounds"
        world: Any = World(args.least, args.turns, args.horizon, args.latency, args.sigma)
        words: Any = Words(DISTINCT if args.engine == "stub" else 2)
        player = Player(
            self.engine,
            world,
            words,
            Sampling(max_tokens=args.max_tokens),
            max_length=args.max_length,
            environment_threads=args.groups * args.group,
        )
        found, moved = Found(Played(schedule.staleness)), threading.Condition()
        failed: list[BaseException] = []
        before = self.counts() if self.counts else {}
        began = time.perf_counter()

        def may_begin(number: int) -> bool:
            alone = schedule.spanning or len(found.ended) >= number
            return bool(failed) or (alone and len(found.played.updated) >= number - schedule.staleness)

        def collect(number: int) -> None:
            with moved:
                moved.wait_for(lambda: may_begin(number))
            start = time.perf_counter()
            with self.engine.held() if schedule.spanning else nullcontext(self.engine) as engine:
                own = replace(player, engine=engine, tally=Tally())
                trees = own.play(
                    states(number, args.groups, args.alike), Uniform(args.group), gate or Never(), (args.seed, number)
                )
            with moved:
                found.seconds[number] = time.perf_counter() - start
                found.work[number] = played(trees, world)
                found.ended[number] = time.perf_counter() - began
                found.tally.update(asdict(own.tally))
                moved.notify_all()

        def collector(number: int) -> None:
            try:
                collect(number)
            except BaseException as error:
                with moved:
                    failed.append(error)
                    moved.notify_all()

        threads = [threading.Thread(target=collector, args=(number,), daemon=True) for number in range(iterations)]
        for thread in threads:
            thread.start()
        for number in range(iterations):
            with moved:
                moved.wait_for(lambda: failed or number in found.ended)  # noqa: B023
            if failed:
                raise failed[0]
            time.sleep(args.update)
            with moved:
                found.played.updated.append(time.perf_counter() - began)
                moved.notify_all()
        for thread in threads:
            thread.join()
        found.played.collected = [found.ended[number] for number in range(iterations)]
        if self.counts:
            now = self.counts()
            found.tokens = {name: now[name] - before[name] for name in ("decoded", "thrown", "saved")}
        else:
            thrown = float(found.tally["cancelled_tokens"])
            found.tokens = {"decoded": found.tally["tokens"] + thrown, "thrown": thrown}
        return found

    def ways(self, iterations: int) -> dict[str, Found]:
        """Measures every staleness, one collection after the other, and also side by side if the engine allows it."""
        served = self.args.engine != "tree"
        schedules = [Schedule(True, k, beside) for beside in (False, True)[: 1 + served] for k in range(beside, 3)]
        return {str(way): self.measure(way, iterations) for way in schedules}


def main() -> int:
    args = parser().parse_args()
    prepare(args)
    with tempfile.TemporaryDirectory() as folder, opened(args, Path(folder)) as (engine, counts):
        bench = Bench(args, engine, counts)
        ways = bench.ways(args.iterations)
        rounds = bench.measure(Schedule(False), args.rounds)
        gate = Divergence(args.gate_step, THRESHOLD if args.engine == "stub" else 0.45)
        cut = {str(way): bench.measure(way, args.rounds, gate) for way in (Schedule(False), Schedule(True))}
    report(args, ways, rounds, cut)
    return 0


def report(args: argparse.Namespace, ways: dict[str, Found], rounds: Found, cut: dict[str, Found]) -> None:
    free = ways[str(Schedule(True))]
    same = range(min(len(rounds.seconds), len(free.seconds)))
    asked = sum(tokens(free.work[number]) for number in same)
    gated_rounds, gated = cut.values()
    absent: dict[str, str] = {}
    details: dict[str, Any] = {"absent": absent}
    base = free.played.iteration
    ratios: dict[str, Any] = {
        "x_rounds": ratio(sum(rounds.seconds[number] for number in same), sum(free.seconds[number] for number in same)),
        "x_staleness": {str(k): ratio(base, ways[str(Schedule(True, k))].played.iteration) for k in range(3)},
        "x_beside": {
            str(k): ratio(base, ways[way].played.iteration)
            for k in (1, 2)
            if (way := str(Schedule(True, k, True))) in ways
        },
        "between_rounds_tokens_pct": spared(gated_rounds.tokens["decoded"], asked),
        "cancelled_tokens_pct": spared(gated.tokens["decoded"], asked),
    }
    if args.engine == "stub":
        site = site_of(args)
        for name, beside in (("bound_ratio", False), ("beside_bound_ratio", True)):
            ahead = Schedule(True, 1, beside)
            found = ways[str(ahead)]
            work = [found.work[number] for number in range(found.played.first + 1, args.iterations)]
            ratios[name] = ratio(found.played.iteration, bound(work, site, ahead))
        ratios["uncancelled_tokens_pct"] = spared(gated.tokens["decoded"] + gated.tokens["saved"], asked)
        played_as = {str(way): way for k in range(3) for way in (Schedule(True, k), Schedule(True, k, True))}
        details["simulated"] = {
            name: {
                "measured_s": found.played.updated[-1],
                "simulated_s": play([found.work[n] for n in sorted(found.work)], site, way).updated[-1],
            }
            for name, (way, found) in {
                "rounds": (Schedule(False), rounds),
                **{name: (played_as[name], found) for name, found in ways.items()},
            }.items()
        }
    else:
        for name in ("bound_ratio", "beside_bound_ratio", "uncancelled_tokens_pct"):
            absent[name], ratios[name] = "the rate of this engine is not known", None
    named = {"rounds, staleness 0": rounds, **ways, **{f"{name}, gate": found for name, found in cut.items()}}
    details["ways"] = {name: record(found) for name, found in named.items()}
    rows = [
        [
            name,
            f"{fmean(found.seconds.values()):.2f}",
            f"{found.played.iteration:.2f}",
            f"{found.tokens['decoded']:,.0f}",
            f"{found.tokens['thrown']:,.0f}",
        ]
        for name, found in named.items()
    ]
    show("Long tails", ["way", "a collection, s", "an iteration, s", "tokens decoded", "thrown away"], rows)
    finish("longtail", args, ratios, details)


def record(found: Found) -> dict[str, Any]:
    return {
        "collections_s": [round(found.seconds[number], 3) for number in sorted(found.seconds)],
        "updated_s": [round(value, 3) for value in found.played.updated],
        "turns": found.tally["turns"],
        "tokens": found.tokens,
        "cancelled": found.tally["cancelled"],
    }


def tokens(groups: Sequence[Group]) -> int:
    return sum(count for group in groups for rollout in group.rollouts for count, _ in rollout)


def spared(decoded: float, asked: float) -> float:
    """Returns the share of the tokens that were not decoded, in percent."""
    return round(100 * (1 - decoded / asked), 2)


def site_of(args: argparse.Namespace) -> Site:
    """Returns the simulated server in the form that a simulation reads."""
    return Site(Pace.halving(args.first, args.half), 1, args.places, 1, 1, args.update, 0.0)


def parser() -> argparse.ArgumentParser:
    found = options(__doc__, rounds=2)
    add = found.add_argument
    add("--engine", choices=["stub", "vllm", "tree"], default="stub")
    add("--vllm-python", default=".venv-vllm/bin/python", help="Python interpreter that has vLLM (%(default)s)")
    add(
        "--iterations",
        type=number_from(4, 1e4, whole=True),  # with staleness 2, the first three collections wait for no update
        default=8,
        help="iterations under free, at least 4; --rounds is for the others (%(default)s)",
    )
    add("--groups", type=int, default=8, help="number of groups of a collection (%(default)s)")
    add("--group", type=int, default=8, help="number of rollouts of a group (%(default)s)")
    add("--least", type=int, default=3, help="minimum number of turns of a rollout (%(default)s)")
    add("--turns", type=float, default=6.0, help="mean number of turns; geometric above the minimum (%(default)s)")
    add("--horizon", type=int, default=16, help="maximum number of turns of a rollout (%(default)s)")
    add("--reply", type=float, default=40.0, help="mean number of tokens of a reply (%(default)s)")
    add("--max-tokens", type=int, default=400, help="maximum number of tokens of a reply (%(default)s)")
    add("--max-length", type=int, default=8192, help="maximum number of tokens of a history (%(default)s)")
    add("--latency", type=float, default=0.1, help="mean seconds of a reply of the environment (%(default)s)")
    add("--sigma", type=float, default=1.0, help="sigma of the logarithms of reply lengths and latencies (%(default)s)")
    add("--update", type=float, default=1.0, help="seconds of an update (%(default)s)")
    add("--first", type=float, default=300.0, help="stub: tokens per second of a single request (%(default)s)")
    add("--half", type=float, default=64.0, help="stub: requests at which each has half of this rate (%(default)s)")
    add("--places", type=int, default=64, help="maximum number of requests decoded together (%(default)s)")
    add("--alike", type=float, default=0.5, help="share of the groups whose rollouts act alike (%(default)s)")
    add("--gate-step", type=int, default=2, help="turn after which the gate decides (%(default)s)")
    return found


if __name__ == "__main__":
    sys.exit(main())
