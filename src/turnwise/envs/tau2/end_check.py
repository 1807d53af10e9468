"""Checks at the end of an episode whether the benchmark counts it as a success."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.envs.tau2.lookups import customer_of
from turnwise.envs.tau2.problem import Gold, Tau2Problem
from turnwise.envs.tau2.world import FAILED, World
from turnwise.types import ToolCall

DATABASE, SAID, ACTIONS, ASSERTIONS, UNFINISHED = "database", "not_said", "action_missing", "assertion", "unfinished"


@dataclass(frozen=True, slots=True)
class Reference:
    """A task of tau2-bench, and the state to which the calls of its solution lead.

    Attributes:
        goal: the state of the databases after the calls in ``problem.gold``.
        steps: a pair (call, whether it changes the state) for each call in ``problem.gold`` that succeeds or changes
            the state. The benchmark ignores all other calls.
        customer: the identifier of the customer; empty if the identifier is not known.
    """

    problem: Tau2Problem
    goal: Mapping[str, Any]
    steps: tuple[tuple[Gold, bool], ...]
    customer: str

    @classmethod
    def of(cls, problem: Tau2Problem) -> Reference:
        """Makes the calls in ``problem.gold`` on a copy of the start state.

        Raises:
            EnvironmentFault: the databases cannot be used.
        """
        world, state = problem.start.fork(), problem.start.state()
        steps = []
        for gold in problem.gold:
            failed = world.call(gold.call).startswith(FAILED)
            before, state = state, world.state()
            if not failed or before != state:
                steps.append((gold, before != state))
        return cls(problem, state, tuple(steps), customer_of(problem))

    def fault(self, world: World, calls: Sequence[ToolCall], said: Sequence[str]) -> str:
        """Returns the name of the first check that an ended episode fails; empty if the episode is a success.

        Args:
            world: the databases at the end.
            calls: all calls that the agent made.
            said: all messages from the agent to the user.

        Raises:
            EnvironmentFault: the databases cannot be used.
        """
        problem = self.problem
        if problem.required and any(not any(gold.matches(call) for call in calls) for gold in problem.gold):
            return ACTIONS
        if problem.assertions is None:
            if world.state() != self.goal:
                return DATABASE
        elif not all(_holds(world, assertion) for assertion in problem.assertions):
            return ASSERTIONS
        return SAID if missing(problem.said, said) else ""

    def leads(self, world: World, made: Sequence[ToolCall], due: Sequence[Gold]) -> bool:
        """Returns whether all checks of the task pass if the calls in ``due`` are made after the calls ``made``.

        ``world`` is the state after the calls ``made`` and is not changed. The method assumes that the agent gives the
        user all required information.
        """
        world, calls = world.fork(), [gold.call for gold in due]
        for call in calls:
            world.call(call)
        return self.fault(world, [*made, *calls], self.problem.said) == ""

    @property
    def free(self) -> bool:
        """Returns whether the benchmark counts the task as solved if the agent does and says nothing."""
        return not self.fault(self.problem.start, (), ())


def missing(wanted: Sequence[str], said: Sequence[str]) -> list[str]:
    """Returns the texts in ``wanted`` that no message in ``said`` contains.

    As in the benchmark, the comparison ignores upper and lower case, and commas in the messages.
    """
    told = "\n".join(said).lower().replace(",", "")
    return [each for each in wanted if each.lower() not in told]


def _holds(world: World, assertion: Mapping[str, Any]) -> bool:
    tools = world.opened()
    side = tools.user_tools if assertion["env_type"] == "user" else tools.tools
    check = getattr(side, assertion["func_name"])
    from inspect_ai.tool import ToolError

    try:
        found = world.within(lambda: check(**assertion["arguments"]))
    except ToolError:  # the object that the assertion names does not exist
        return False
    return bool(found == assertion.get("assert_value", True))
