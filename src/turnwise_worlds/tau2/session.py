"""An episode of ``env=tau2``: the policy's tools, what it was shown, and the check at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.data.toolcalls import PARSERS, Format, Reply, ToolCallError
from turnwise.env import CountedSession, Step
from turnwise.types import Message, Task, ToolCall
from turnwise_worlds.tau2.domains import (
    DONE,
    FAILED,
    TRANSFER,
    DomainDatabases,
    Gold,
    Tau2Problem,
    customer_of,
    policy,
)
from turnwise_worlds.tau2.user import Talk, User
from turnwise_worlds.tool_environment import Tools, answer_messages, opening_messages, refusal, templated

DATABASE, SAID, ACTIONS, ASSERTIONS, UNFINISHED = "database", "not_said", "action_missing", "assertion", "unfinished"
_IDENTIFIERS = ("_id", "_ids", "flight_number")  # parameters with these endings take their values from a database


@dataclass(frozen=True, slots=True)
class Tau2Reference:
    """A task and ``goal``, the databases after its solution. ``steps`` are the calls that succeed or change the state,
    each with whether it changes it; the benchmark ignores the others. ``customer`` is empty if unknown.
    """

    problem: Tau2Problem
    goal: Mapping[str, Any]
    steps: tuple[tuple[Gold, bool], ...]
    customer: str

    @classmethod
    def of(cls, problem: Tau2Problem) -> Tau2Reference:
        world, state = problem.start.fork(), problem.start.state()
        steps = []
        for gold in problem.gold:
            failed = world.call(gold.call).startswith(FAILED)
            before, state = state, world.state()
            if not failed or before != state:
                steps.append((gold, before != state))
        return cls(problem, state, tuple(steps), customer_of(problem))

    def fault(self, world: DomainDatabases, calls: Sequence[ToolCall], texts: Sequence[str]) -> str:
        """Returns the name of the first check that an ended episode fails; empty if the episode is a success."""
        problem = self.problem
        if problem.required and any(not any(gold.matches(call) for call in calls) for gold in problem.gold):
            return ACTIONS
        if problem.assertions is None:
            if world.state() != self.goal:
                return DATABASE
        elif not all(_holds(world, assertion) for assertion in problem.assertions):
            return ASSERTIONS
        return SAID if missing(problem.said, texts) else ""

    def leads(self, world: DomainDatabases, made: Sequence[ToolCall], due: Sequence[Gold]) -> bool:
        """Returns whether all checks pass if the calls ``due`` follow ``made``, which led to ``world``, and the agent
        says all that is required.
        """
        world, calls = world.fork(), [gold.call for gold in due]
        for call in calls:
            world.call(call)
        return self.fault(world, [*made, *calls], self.problem.said) == ""

    @property
    def free(self) -> bool:
        return not self.fault(self.problem.start, (), ())


def missing(wanted: Sequence[str], texts: Sequence[str]) -> list[str]:
    """As in the benchmark, the comparison ignores upper and lower case, and commas in the messages."""
    text = "\n".join(texts).lower().replace(",", "")
    return [each for each in wanted if each.lower() not in text]


def _holds(world: DomainDatabases, assertion: Mapping[str, Any]) -> bool:
    tools = world.opened()
    side = tools.user_tools if assertion["env_type"] == "user" else tools.tools
    check = getattr(side, assertion["func_name"])
    from inspect_ai.tool import ToolError

    try:
        holds = world.within(lambda: check(**assertion["arguments"]))
    except ToolError:  # the object that the assertion names does not exist
        return False
    return bool(holds == assertion.get("assert_value", True))


ROLE = (
    "You work in the customer service of a company and talk to a customer. Keep to the policy below. In a reply you either call "
    "tools or write to the customer, never both; the customer sees nothing of your calls and their answers."
)
SOLO_ROLE = (
    "You work in the customer service of a company and are given a ticket. Keep to the policy below. You cannot talk to the "
    "customer: solve the ticket by calling tools, those of the customer's phone among them, and call done alone at the end."
)


class Tau2Session(CountedSession):
    """A reply makes tool calls or is a message to the user. The episode ends when the user ends the conversation or, in
    solo mode, when the agent calls ``done``; at the horizon it is lost. The reward, 0 or 1, comes at the end.
    """

    def __init__(
        self,
        task: Task,
        reference: Tau2Reference,
        user: User,
        talk: Talk | None,
        form: Format,
        horizon: int,
        rules: bool,
    ) -> None:
        self.task, self.reference, self.user = task, reference, user
        self.form, self.horizon, self.rules = form, horizon, rules
        self.world: DomainDatabases = reference.problem.start.fork()
        self.talk = talk  # None in solo mode
        self.made: tuple[ToolCall, ...] = ()
        self.said: tuple[str, ...] = ()  # the agent's messages to the user so far
        # all texts that the agent has read so far
        self.shown: tuple[str, ...] = (talk.last if talk else reference.problem.ticket,)
        # the calls that the verifier's function ``still_due`` found for this turn; None until they are computed
        self.due: tuple[list[tuple[Gold, bool]], ...] | None = None
        self.fault = ""

    @property
    def tools(self) -> Tools:
        return self.reference.problem.tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        problem = self.reference.problem
        system = [SOLO_ROLE if problem.solo else ROLE]
        if self.rules:
            system.append(f"<policy>\n{policy(problem.domain)}\n</policy>")
        user = self.shown[0] if not problem.solo else f"<ticket>\n{problem.ticket}\n</ticket>"
        return opening_messages("\n\n".join(system), problem.tools, self.form, user)

    def read(self, action: str) -> Reply:
        reply = PARSERS[self.form](action, self.reference.problem.tools)
        if not (reply.calls or reply.content):
            raise ToolCallError("the reply is empty")
        if self.talk is None:
            ends = [call for call in reply.calls if call.name == "done"]
            if not reply.calls:
                raise ToolCallError("nobody reads this; call a tool, or done at the end")
            if ends and (len(reply.calls) > 1 or ends[0].arguments):
                raise ToolCallError("call done alone and without arguments")
        return reply

    def answer(self, action: str) -> Step:
        self.due = None
        results: list[str] = []
        observation = ""
        try:
            reply = self.read(action)
        except ToolCallError as error:
            results = [refusal(error)]
        else:
            if self.talk is None and reply.calls[0].name == "done":
                self._end()
            elif reply.calls:
                results = [self.world.call(call) for call in reply.calls]
                self.made += reply.calls
            else:
                observation = self._say(reply.content)
        observation = "\n".join(results) if results else observation
        self.shown += (observation,)
        if self.turns + 1 >= self.horizon and not self.done:
            self.fault, self.done = UNFINISHED, True
        info = {"domain": self.reference.problem.domain, "fault": self.fault}
        return Step(observation, float(self.won), self.done, self.won, info, answer_messages(results, self.form))

    def _say(self, text: str) -> str:
        assert self.talk is not None  # in solo mode ``read`` refuses replies without calls
        self.said += (text,)
        satisfied = not self.reference.fault(self.world, self.made, self.said)
        transferred = any(call.name == TRANSFER for call in self.made)
        self.talk = self.user.reply(self.talk, text, transferred, satisfied)
        if self.talk.ended:
            self._end()
        return self.talk.last

    def _end(self) -> None:
        self.fault = self.reference.fault(self.world, self.made, self.said)
        self.done, self.won = True, not self.fault


ENDING = ToolCall(str(DONE["function"]["name"]), {})


def unknown(session: Tau2Session, calls: Sequence[ToolCall]) -> set[str]:
    """Returns the identifiers in the arguments of ``calls``, and of the customer, that the agent has not read yet."""
    needed = {value for call in calls for value in identifiers(call.arguments)}
    if session.reference.customer:
        needed.add(session.reference.customer)
    return {value for value in needed if not any(value in text for text in session.shown)}


def seen(session: Tau2Session, answer: str) -> bool:
    return any(answer in text for text in session.shown)


def identifiers(arguments: Mapping[str, Any]) -> set[str]:
    names: set[str] = set()
    for name, value in arguments.items():
        if isinstance(value, list):
            names |= {each for each in value if isinstance(each, str) and name.endswith(_IDENTIFIERS)}
            names |= {each for item in value if isinstance(item, Mapping) for each in identifiers(item)}
        elif isinstance(value, str) and (name == "id" or name.endswith(_IDENTIFIERS)):
            names.add(value)
    return names
