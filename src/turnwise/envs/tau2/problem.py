"""A task of tau2-bench: what the agent reads, the calls that solve the task, and what is checked at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.tau2.lookups import customer_of
from turnwise.envs.tau2.package import DOMAINS, SOLO, of_package, records, toolbox
from turnwise.envs.tau2.world import FAILED, World
from turnwise.envs.tools import Tools
from turnwise.types import ToolCall

TRANSFER = "transfer_to_human_agents"
DONE: Mapping[str, Any] = {  # a tool of solo mode, in which only the agent can end the episode
    "type": "function",
    "function": {
        "name": "done",
        "description": "End the work on the ticket. Call this alone, once the ticket is solved.",
        "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    },
}
DATABASE, SAID, ACTIONS, ASSERTIONS, UNFINISHED = "database", "not_said", "action_missing", "assertion", "unfinished"


@dataclass(frozen=True, slots=True)
class Gold:
    """One of the tool calls that the benchmark lists as a task's solution.

    ``compared`` names the arguments in which a call of the agent must agree with it; None means all arguments.
    """

    call: ToolCall
    compared: tuple[str, ...] | None = None

    def matches(self, call: ToolCall) -> bool:
        """Returns whether a call of the agent counts as this call by the benchmark's rule.

        The elements of a list may be in any order. For a transfer to a human, it is enough that the tool is the same.
        """
        if call.name != self.call.name:
            return False
        if call.name == TRANSFER or self.compared == ():
            return True
        made, wanted = dict(call.arguments), dict(self.call.arguments)
        if self.compared is not None:
            made, wanted = ({name: each.get(name) for name in self.compared} for each in (made, wanted))
        return bool(of_package("utils", "deep_equal_unordered")(made, wanted))


@dataclass(frozen=True, slots=True)
class Tau2Problem:
    """One task.

    Attributes:
        domain: one of ``DOMAINS``.
        start: the databases at the start; they are never changed.
        gold: the calls that the benchmark lists as the task's solution, in order.
        scenario: the benchmark's record of the instructions to the simulated user.
        ticket: the text that the agent gets in solo mode.
        said: information that the agent has to give the user.
        required: whether the agent has to make all calls in ``gold``.
        assertions: conditions that must be true at the end. None means that the state must equal the state to which the
            calls in ``gold`` lead.
    """

    domain: str
    start: World
    gold: tuple[Gold, ...]
    scenario: Mapping[str, Any]
    ticket: str
    said: tuple[str, ...]
    required: bool
    assertions: tuple[Mapping[str, Any], ...] | None

    @property
    def solo(self) -> bool:
        """Returns whether the agent works in solo mode, on a ticket and without a user."""
        return self.domain in SOLO

    @property
    def tools(self) -> Tools:
        """Returns the definitions of the tools that the agent can call."""
        return (*toolbox(self.domain).tools, DONE) if self.solo else toolbox(self.domain).tools


@dataclass(frozen=True, slots=True)
class Reference:
    """A task together with the result of making the calls that solve it. A ``Reference`` is never changed.

    Attributes:
        problem: the content of the task.
        goal: the state of the databases after the calls in ``problem.gold``.
        steps: the pair (call, whether it changes the state) for each of these calls that succeeds or changes the state.
            The benchmark ignores the other calls.
        customer: the identifier of the customer; empty if it is not known.
    """

    problem: Tau2Problem
    goal: Mapping[str, Any]
    steps: tuple[tuple[Gold, bool], ...]
    customer: str

    @classmethod
    def of(cls, problem: Tau2Problem) -> Reference:
        """Makes the calls in ``problem.gold`` on a copy of the start state and returns the result.

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
        """Returns the name of the first check that an ended episode fails; empty if the benchmark counts it as a
        success.

        Args:
            world: the databases as the agent left them.
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

        ``world`` is the state after the calls ``made``; it is not changed. The method assumes that the agent gives the
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

    The comparison ignores upper and lower case, and commas in the messages are removed, as in the benchmark.
    """
    told = "\n".join(said).lower().replace(",", "")
    return [each for each in wanted if each.lower() not in told]


@lru_cache(maxsize=256)
def problem_of(domain: str, name: str) -> Tau2Problem:
    """Returns a task of the benchmark's base set.

    Raises:
        ValueError: there is no domain or task of this name.
        MissingTau2Error: the package cannot be used.
    """
    if domain not in DOMAINS or name not in records(domain):
        raise ValueError(f"tau2 has no task {domain}/{name}")
    record = records(domain)[name]
    criteria: Mapping[str, Any] = record["evaluation_criteria"]
    start = World.fresh(domain)
    prepare(start, (record.get("initial_state") or {}).get("initialization_actions") or ())
    basis = criteria.get("reward_basis") or ("DB", "COMMUNICATE")
    return Tau2Problem(
        domain=domain,
        start=start,
        gold=tuple(map(_gold, criteria.get("actions") or ())),
        scenario=record["user_scenario"],
        ticket=record.get("ticket") or "",
        said=tuple(criteria.get("communicate_info") or ()) if "COMMUNICATE" in basis else (),
        required="ACTION" in basis,
        assertions=None if "DB" in basis else tuple(criteria.get("env_assertions") or ()),
    )


def prepare(world: World, actions: Sequence[Mapping[str, Any]]) -> None:
    """Changes ``world`` by what happened before the episode begins, for example a wrong setting or an unpaid bill.

    Raises:
        EnvironmentFault: an action fails.
    """
    if not actions:
        return
    perform, call = of_package("telecom.solver", "perform_action"), of_package("data_model.tasks", "EnvFunctionCall")
    tools = world.opened()
    try:
        for action in actions:
            world.within(partial(perform, tools, call.model_validate(action)))
    except Exception as error:
        raise EnvironmentFault(f"tau2 {world.domain}: the task's start state cannot be created ({error})") from error


def _gold(action: Mapping[str, Any]) -> Gold:
    compared = action.get("compare_args")
    return Gold(ToolCall(action["name"], action["arguments"]), None if compared is None else tuple(compared))


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
