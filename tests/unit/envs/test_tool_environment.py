"""A tool environment made of the shared bases alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.unit.envs.demonstrations import replay

from turnwise.data.tool_schema import make_tool
from turnwise.env import Demonstrates, Environment, Step, Verifies, demonstrated, verifier_of
from turnwise.errors import InputError
from turnwise.types import Task
from turnwise_worlds.facts import FactsEnv
from turnwise_worlds.scripted_experts import Chances, Expert
from turnwise_worlds.tool_environment import TextSession, ToolEnv

TOOLS = (make_tool("guess", "Guess the number.", number=("string", "the number")),)


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    low: float = 0.4
    never: float = 0.4


class SafeSession(TextSession):
    def use(self, name: str, argument: str) -> Step:
        won = argument == self.task.data["number"]
        return Step("open" if won else "closed", float(won), won, won)


class SafeExpert(Expert[SafeSession]):
    def best(self, session: SafeSession) -> str:
        return session.write("guess", session.task.data["number"])

    def has_room(self, session: SafeSession) -> bool:
        return session.horizon - session.turns > 1

    def _low(self, session: SafeSession) -> str:
        return session.write("guess", "0")

    def _never(self, session: SafeSession) -> None:
        return None  # not possible: the good expert's action is taken


class SafeEnv(ToolEnv[SafeSession]):
    name = "safe"
    expert = SafeExpert

    def __init__(self, mistakes: Mistakes | None = None) -> None:
        super().__init__("tiny", 4, None, TOOLS)
        self.mistakes = mistakes or Mistakes()

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [Task(self.name, f"{split}/{n}", split, {"number": str(n + 1)}) for n in range(count)]

    def begin(self, task: Task) -> SafeSession:
        return SafeSession(task, self._calls, self.horizon, "", "open the safe")

    def unknown(self, session: SafeSession) -> str:
        return "" if session.task.data["number"] else "names no number"

    def accepts(self, session: SafeSession, action: str, expert: str) -> bool:
        return session.read(action) == session.read(expert)


def test_an_environment_of_tools_is_made_of_the_bases() -> None:
    env = SafeEnv()
    assert isinstance(env, Environment) and isinstance(env, Demonstrates) and isinstance(env, Verifies)
    for task in env.tasks("train", 5):
        replayed = replay(env, task)
        assert replayed.won and replayed.alike
        assert env.accepts(env.reset(task), f"guess  {task.data['number']}", replayed.actions[-1])
    with pytest.raises(InputError, match="names no number"):
        env.demonstrate(Task("safe", "x", "train", {"number": ""}))


def test_a_run_is_told_which_protocol_its_environment_lacks() -> None:
    env = FactsEnv()
    (task,) = env.tasks("train", 1)
    assert isinstance(env, Environment) and not isinstance(env, Demonstrates)
    with pytest.raises(InputError, match="env=facts has no expert"):
        demonstrated(env, task, "good", 0)
    with pytest.raises(InputError, match="env=facts has no verifier"):
        verifier_of(env, task)


def test_a_clumsy_expert_errs_as_often_as_its_chances_say_and_recovers() -> None:
    shown = [SafeEnv().demonstrate(task, "clumsy", seed) for task in SafeEnv().tasks("train", 50) for seed in range(10)]
    assert all(each.success for each in shown)
    first = [each.messages[2]["content"] for each in shown]
    assert 0.3 < first.count("guess 0") / len(first) < 0.5  # of 500 draws
    assert all(
        SafeEnv(Mistakes(0, 0.8)).demonstrate(each.task, "clumsy").messages[2]["content"] != "guess 0"
        for each in shown[:5]
    )
