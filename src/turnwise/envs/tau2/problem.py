"""A task of tau2-bench: what the agent reads, the calls that solve the task, and the conditions of success."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from turnwise.envs.tau2.package import DOMAINS, SOLO, of_package, task_records, toolbox
from turnwise.envs.tau2.world import World, prepare
from turnwise.envs.tool_messages import Tools
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


@dataclass(frozen=True, slots=True)
class Gold:
    """One of the tool calls that the benchmark lists as a task's solution."""

    call: ToolCall
    compared: tuple[str, ...] | None = None  # names of the arguments that the benchmark compares; None means all

    def matches(self, call: ToolCall) -> bool:
        """Returns whether the benchmark counts ``call``, a call of the agent, as the listed call.

        The elements of a list may be in any order. For a transfer to a human, only the names of the tools are compared.
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
    """The content of one task of tau2-bench.

    Attributes:
        domain: one of ``DOMAINS``.
        start: the databases at the start, which are never changed.
        gold: the calls that the benchmark lists as the task's solution, in order.
        scenario: the benchmark's record of the instructions to the simulated user.
        ticket: the text that the agent gets in solo mode.
        said: information that the agent has to give the user.
        required: whether the agent has to make all calls in ``gold``.
        assertions: conditions that must be true at the end. None means that the databases must be in the state to which
            the calls in ``gold`` lead.
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
        return (*toolbox(self.domain).tools, DONE) if self.solo else toolbox(self.domain).tools


@lru_cache(maxsize=256)
def problem_of(domain: str, name: str) -> Tau2Problem:
    """Returns a task of the benchmark's base set.

    Raises:
        ValueError: there is no domain or task of this name.
        MissingTau2Error: the package cannot be used.
    """
    if domain not in DOMAINS or name not in task_records(domain):
        raise ValueError(f"tau2 has no task {domain}/{name}")
    record = task_records(domain)[name]
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


def _gold(action: Mapping[str, Any]) -> Gold:
    compared = action.get("compare_args")
    return Gold(ToolCall(action["name"], action["arguments"]), None if compared is None else tuple(compared))
