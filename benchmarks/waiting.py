"""Measures environments that wait: what `rollout.environment_threads` saves when resets, steps and verifiers take long.

    python benchmarks/waiting.py
    python benchmarks/waiting.py --reset 2 --step 0.5 --verify 1 --tasks 16 --json outputs/waiting.json

The environment is the household, and each of its resets, steps and verdicts first sleeps. The shipped policy samples.
Each part runs with one call after the other (0 threads) and with `--threads`, in turns. All results are compared: the
demonstrations, first messages and rollouts must be equal, or the program ends with an error. The waits are assumptions;
they stand for commands in a sandbox or answers of a server.

Last line: {part: {"seconds": {threads: seconds}, "x": ratio}} for the parts

demonstrations   the experts' episodes that a run writes before it begins
openings         the first messages of the tasks
episodes         rollouts of whole episodes (GRPO)
verdicts         rollouts of one turn, whose actions the environment judges (PivotRL)
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from common import finish, positive, program
from turnwise.algo.allocators.uniform import Uniform
from turnwise.algo.gates.never import Never
from turnwise.algo.states.task_starts import task_starts
from turnwise.console import number
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.envs.expert_files import expert_file
from turnwise.envs.household import HouseholdEnv
from turnwise.models.policy import load_policy
from turnwise.models.shipped import tiny_path
from turnwise.rollouts.openings import Openings
from turnwise.rollouts.player import Player
from turnwise.types import RolloutTree, Task


class Waiting(HouseholdEnv):
    """A household that sleeps before each reset, step and verdict."""

    waits = True

    def __init__(self, reset: float, step: float, verify: float, horizon: int) -> None:
        super().__init__(horizon=horizon)
        self.reset_seconds, self.step_seconds, self.verify_seconds = reset, step, verify

    def begin(self, task: Task) -> Any:
        time.sleep(self.reset_seconds)
        return Slow(super().begin(task), self.step_seconds)

    def accepts(self, session: Any, action: str, expert: str) -> bool:
        time.sleep(self.verify_seconds)
        return super().accepts(session.session, action, expert)


class Slow:
    """A session whose steps sleep first."""

    def __init__(self, session: Any, seconds: float) -> None:
        self.session, self.seconds = session, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    def step(self, action: str) -> Any:
        time.sleep(self.seconds)
        return self.session.step(action)

    def fork(self) -> Slow:
        return Slow(self.session.fork(), self.seconds)


class Work:
    """The parts that are measured. Each part takes a number of threads and returns its result."""

    def __init__(self, env: Waiting, tasks: int, group: int, folder: Path) -> None:
        model, tokenizer = load_policy(tiny_path())
        self.env, self.group, self.folder, self.chat = env, group, folder, ChatTokens(tokenizer)
        self.engine = TreeEngine(self.chat.stop_ids)
        self.engine.load_weights(model, version=0)
        self.tasks = env.tasks("train", tasks)
        quick = HouseholdEnv(horizon=env.horizon)
        opening = Openings(quick, self.chat)
        self.starts = task_starts(self.tasks, lambda task: opening(task)[1])
        experts = [quick.demonstrate(task).messages[2]["content"] for task in self.tasks]
        self.anchored = [replace(state, expert=expert) for state, expert in zip(self.starts, experts, strict=True)]

    def demonstrations(self, threads: int) -> bytes:
        shutil.rmtree(self.folder, ignore_errors=True)
        return expert_file(self.env, len(self.tasks), self.folder, threads=threads).read_bytes()

    def openings(self, threads: int) -> Any:
        opening = Openings(self.env, self.chat, threads)
        opening.read(self.tasks)
        return [opening(task) for task in self.tasks]

    def episodes(self, threads: int) -> Any:
        return self._played(self.starts, threads, None)

    def verdicts(self, threads: int) -> Any:
        return self._played(self.anchored, threads, 1)

    def _played(self, states: Any, threads: int, turns: int | None) -> Any:
        player = Player(self.engine, self.env, self.chat, Sampling(), max_turns=turns, environment_threads=threads)
        return [_shown(tree) for tree in player.play(states, Uniform(self.group), Never(), "waiting")]


def _shown(tree: RolloutTree) -> Any:
    return [(turn.text, turn.observation, turn.reward, turn.parent, turn.info) for turn in tree.turns]


PARTS = ("demonstrations", "openings", "episodes", "verdicts")


def main() -> None:
    parser = program(__doc__)
    seconds = number(0, 1e3)
    parser.add_argument("--reset", type=seconds, default=1.0, help="seconds of a reset (1)")
    parser.add_argument("--step", type=seconds, default=0.2, help="seconds of a step (0.2)")
    parser.add_argument("--verify", type=seconds, default=0.5, help="seconds of a verdict (0.5)")
    parser.add_argument("--tasks", type=positive, default=8, help="number of tasks (8)")
    parser.add_argument("--group", type=positive, default=8, help="rollouts of each task (8)")
    parser.add_argument("--horizon", type=positive, default=6, help="most turns of an episode (6)")
    parser.add_argument("--threads", type=positive, default=64, help="rollout.environment_threads (64)")
    parser.add_argument("--rounds", type=positive, default=2, help="measured rounds; the result is their median (2)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        env = Waiting(args.reset, args.step, args.verify, args.horizon)
        work = Work(env, args.tasks, args.group, Path(folder) / "experts")
        found = {part: measure(part, getattr(work, part), args.threads, args.rounds) for part in PARTS}
    finish("waiting", args, {}, {"parts": found})


def measure(part: str, run: Callable[[int], Any], threads: int, rounds: int) -> dict[str, Any]:
    """Returns the median seconds of a part without threads and with ``threads``, and their ratio."""
    taken: dict[int, list[float]] = {0: [], threads: []}
    results = []
    for _ in range(rounds):
        for number_of_threads, seconds in taken.items():
            began = time.perf_counter()
            results.append(run(number_of_threads))
            seconds.append(time.perf_counter() - began)
    if any(result != results[0] for result in results):
        raise SystemExit(f"{part}: the results with {threads} threads differ from those without threads")
    alone, together = (median(seconds) for seconds in taken.values())
    print(f"{part}: {alone:.1f} s one after the other, {together:.1f} s with {threads} threads")
    return {"seconds": {str(key): median(seconds) for key, seconds in taken.items()}, "x": alone / together}


if __name__ == "__main__":
    main()
