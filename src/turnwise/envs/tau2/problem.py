"""A task of the benchmark: what the agent reads, the expert's calls, and what is checked at the end."""

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
    """A call that the benchmark demonstrates. ``compared`` names the arguments that must be equal; None means all."""

    call: ToolCall
    compared: tuple[str, ...] | None = None

    def matches(self, call: ToolCall) -> bool:
        """Returns whether a call counts as this required action by the benchmark's rule.

        The elements of a list may be in any order. For a transfer to a human, the tool's name is enough.
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
        gold: the benchmark's calls, in order.
        scenario: the record of the user's instructions.
        ticket: the text that the agent gets in solo mode.
        said: information that the agent has to give the user.
        required: whether all calls in ``gold`` have to be made.
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
        """Returns the tools that can be called."""
        return (*toolbox(self.domain).tools, DONE) if self.solo else toolbox(self.domain).tools


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of running the expert's calls once. A ``Reference`` is never changed.

    Attributes:
        problem: the content of the task.
        goal: the state that the calls lead to.
        steps: (call, whether it changes the state) for each call that succeeds or changes the state. The benchmark
            ignores other calls.
        customer: the identifier of the customer; empty if it is not known.
    """

    problem: Tau2Problem
    goal: Mapping[str, Any]
    steps: tuple[tuple[Gold, bool], ...]
    customer: str

    @classmethod
    def of(cls, problem: Tau2Problem) -> Reference:
        """Runs the benchmark's calls and returns the result.

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
            world: the state that the agent left.
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
        """Returns whether all checks will pass once the calls in ``due`` have been made too."""
        world, calls = world.fork(), [gold.call for gold in due]
        for call in calls:
            world.call(call)
        return self.fault(world, [*made, *calls], self.problem.said) == ""

    @property
    def free(self) -> bool:
        """Returns whether the benchmark counts the task as solved if the agent does and says nothing."""
        return not self.fault(self.problem.start, (), ())


def missing(wanted: Sequence[str], said: Sequence[str]) -> list[str]:
    """Returns those texts in ``wanted`` that ``said`` does not contain.

    As in the benchmark, texts are compared in lower case and without commas.
    """
    told = "\n".join(said).lower().replace(",", "")
    return [each for each in wanted if each.lower() not in told]


@lru_cache(maxsize=256)
def problem_of(domain: str, name: str) -> Tau2Problem:
    """Returns a task of the base set.

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
    """Applies what happened before the episode begins, for example a wrong setting or an unpaid bill.

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
