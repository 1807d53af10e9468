"""An episode of ``env=tau2``: the user, the policy's tools, and the check at the end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

from turnwise.data.toolcalls import PARSERS, Format, Reply, ToolCallError
from turnwise.endpoints import Fault
from turnwise.env import CountedSession, EnvironmentFault, Step
from turnwise.judges.endpoint import CachedModel, key_of
from turnwise.types import Message, Task, ToolCall
from turnwise_worlds.tau2.domains import (
    DONE,
    FAILED,
    TRANSFER,
    DomainDatabases,
    Gold,
    Tau2Problem,
    customer_of,
    of_package,
    policy,
)
from turnwise_worlds.tool_environment import Tools, answer_messages, opening_messages, refusal, templated

STOP, TRANSFERRED = "###STOP###", "###TRANSFER###"
ENDS = (STOP, TRANSFERRED, "###OUT-OF-SCOPE###")  # the benchmark's markers for the end of a conversation


@dataclass(frozen=True, slots=True)
class Talk:
    """The conversation between the user and the agent so far."""

    scenario: Mapping[str, Any]
    messages: tuple[tuple[str, str], ...] = ()  # (user or agent, text)
    told: frozenset[int] = frozenset()  # numbers of the scenario's facts that the user has given
    idle: int = 0  # number of the user's latest consecutive answers without a new fact
    agreed: bool = False  # whether the user has agreed to the agent's changes
    ended: bool = False

    @property
    def last(self) -> str:
        return "" if self.ended or not self.messages else self.messages[-1][1]


class User(Protocol):
    """A simulated user, who does not see the agent's tool calls. ``scripted``: the answers cost nothing and depend only
    on the conversation, so that a verifier may compute the answer to a message that was not sent.
    """

    scripted: ClassVar[bool]

    def begin(self, scenario: Mapping[str, Any]) -> Talk: ...

    def reply(self, talk: Talk, message: str, transferred: bool, satisfied: bool) -> Talk: ...


@dataclass(frozen=True)
class ScriptedUser:
    """A simulated user that follows rules. It begins with the reason for the call. Its facts are the sentences of the
    instructions in the first person. To a question it gives those that share a word with it, or the next one; if asked
    who it is, what identifies it; if asked for everything, all. It agrees when asked to confirm, and ends when all
    checks pass, after a transfer, or at the ``patience``-th message that brings out nothing new. It only compares words
    and says more than people do, so it does not replace a person.
    """

    patience: int = 3
    scripted: ClassVar[bool] = True

    def begin(self, scenario: Mapping[str, Any]) -> Talk:
        reason = first_person(str(_instructions(scenario).get("reason_for_call") or "").strip())
        return Talk(scenario, (("user", reason or "Hello, I need your help."),))

    def reply(self, talk: Talk, message: str, transferred: bool, satisfied: bool) -> Talk:
        if transferred or satisfied:
            return self._end(talk, message, TRANSFERRED if transferred else STOP)
        known, others = facts(talk.scenario)
        everything = [*known, *others]
        left = [i for i in range(len(everything)) if i not in talk.told]
        agreed = asks(message) and bool(_CONFIRM.search(message))
        news: list[int] = []
        if asks(message):
            words, identity = _words(message), bool(_WHO.search(message))
            news = [i for i in left if (identity and i < len(known)) or words & _words(everything[i])]
            news = left if _ALL.search(message) else news or left[: not agreed]
        if not (news or agreed) and talk.idle + 1 >= self.patience:
            return self._end(talk, message, STOP)
        answer = " ".join([*(["Yes, please."] if agreed else []), *(everything[i] for i in news)])
        return Talk(
            talk.scenario,
            (*talk.messages, ("agent", message), ("user", answer or "I have told you all that I know. Please go on.")),
            talk.told | set(news),
            0 if news else talk.idle + 1,
            talk.agreed or agreed,
        )

    @staticmethod
    def _end(talk: Talk, message: str, word: str) -> Talk:
        messages = (*talk.messages, ("agent", message), ("user", word))
        return Talk(talk.scenario, messages, talk.told, talk.idle, talk.agreed, ended=True)


def asks(message: str) -> bool:
    return bool(_ASKS.search(message))


def facts(scenario: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    instructions = _instructions(scenario)
    known = [instructions.get(key) for key in ("known_info", "unknown_info")]
    return _sentences(*known), _sentences(instructions.get("task_instructions"))


def first_person(text: str) -> str:
    for pattern, mine in _PERSONS:
        text = pattern.sub(partial(_replaced, mine), text)
    return text


def _replaced(mine: str, match: re.Match[str]) -> str:
    after = match.expand(mine)
    return after[:1].upper() + after[1:] if match.group(0)[:1].isupper() else after


def _instructions(scenario: Mapping[str, Any]) -> Mapping[str, Any]:
    instructions = scenario["instructions"]
    return instructions if isinstance(instructions, Mapping) else {"reason_for_call": instructions}


def _sentences(*texts: str | None) -> list[str]:
    parts = [part.strip() for text in texts if text for part in re.split(r"(?<=[.!?])\s+|\n+", text)]
    return [first_person(part) for part in parts if re.search(r"\w", part)]


def _words(text: str) -> set[str]:
    words = {word.strip(".'").lower() for word in re.findall(r"[\w#@.'-]+", text)}
    return {word for word in words if len(word) > 3 or any(sign.isdigit() for sign in word)} - _EMPTY


_ASKS = re.compile(
    r"\?|\b(?:please|could you|can you)\b.{0,99}\b(?:tell|give|provide|share|confirm|state|say)\b",
    re.IGNORECASE | re.DOTALL,
)
_ALL = re.compile(r"\b(everything|all (the |your |of the )?(details|information)|anything else)\b", re.IGNORECASE)
_WHO = re.compile(r"\b(who|name|e-?mail|zip|user id|identify|identity|verify|authenticate|account)\b", re.IGNORECASE)
_CONFIRM = re.compile(
    r"\b(confirm|proceed|go ahead|agree|shall i|should i|do you want me|would you like me|is (this|that) (correct|right|ok))\b",
    re.IGNORECASE,
)
_EMPTY = {
    "your", "have", "with", "that", "this", "what", "which", "would", "could", "should", "please", "will", "from",
    "they", "them", "there", "then", "than", "want", "like", "know", "need", "help", "agent", "into", "about",
    "also", "been", "some", "such", "only", "just", "more", "make", "tell", "asks", "does", "done", "were", "when",
    "where", "i'm", "i've",
}  # fmt: skip
_PERSONS = tuple(
    (re.compile(pattern, re.IGNORECASE), mine)
    for pattern, mine in (
        (r"\byou are\b", "I am"),
        (r"\byou were\b", "I was"),
        (r"\bare you\b", "am I"),
        (r"\bwere you\b", "was I"),
        (r"\byou(['\u2019](?:ve|d|ll))", r"I\1"),
        (r"\byou['\u2019]re\b", "I'm"),
        (r"\byou (?=name\b|user id\b|mobile\b|email\b)", "my "),
        (r"\byourself\b", "myself"),
        (r"\byours\b", "mine"),
        (r"\byour\b", "my"),
        (
            r"\b(to|for|with|from|by|of|on|at|give|gives|tell|tells|ask|asks|help|helps|charge|refund|offers?|lets?) you\b",
            r"\1 me",
        ),
        (r"\byou(?=\s*(?:[.,;:!?)]|$))", "me"),
        (r"\byou\b", "I"),
    )
)


@dataclass(slots=True)
class EndpointUser(CachedModel):
    """A user who is played by a model with the benchmark's instructions. A repeated conversation is read from the
    cache.
    """

    what: ClassVar[str] = "tau2-user"
    scripted: ClassVar[bool] = False
    model: str = "user"
    max_tokens: int = field(default=512, kw_only=True)

    def begin(self, scenario: Mapping[str, Any]) -> Talk:
        return self._go_on(Talk(scenario))

    def reply(self, talk: Talk, message: str, transferred: bool, satisfied: bool) -> Talk:
        return self._go_on(Talk(talk.scenario, (*talk.messages, ("agent", message))))

    def _go_on(self, talk: Talk) -> Talk:
        answer = self._ask(self._request(_messages(talk)))
        over = any(word in answer for word in ENDS)
        return Talk(talk.scenario, (*talk.messages, ("user", answer)), ended=over)

    def _ask(self, request: dict[str, Any]) -> str:
        loop, key = self.open(), key_of(request)
        assert self._store is not None
        answer = self._store.get(key)
        if answer is None:
            try:
                text = loop.start(self._question(request)).result()
            except Fault as fault:
                raise EnvironmentFault(f"tau2: the model that plays the user did not answer ({fault.kind})") from None
            answer = self._store.put(key, self.model, {"text": text})
        return str(answer["text"])

    async def _question(self, request: dict[str, Any]) -> str:
        reply = await self.client.ask(request)
        if not reply.text.strip():
            raise Fault("garbage", "an empty answer")
        return reply.text.strip()


def _messages(talk: Talk) -> list[dict[str, str]]:
    scenario = of_package("data_model.tasks", "UserScenario").model_validate(dict(talk.scenario))
    guidelines = of_package("utils", "USER_SIMULATOR_GUIDELINES")
    # the model plays the user, so the user's messages have the role "assistant"
    roles = {"user": "assistant", "agent": "user"}
    return [
        {"role": "system", "content": f"{guidelines}\n<scenario>\n{scenario}\n</scenario>\n"},
        {"role": "user", "content": str(of_package("common.dataset", "USER_MESSAGE").text)},
        *({"role": roles[who], "content": text} for who, text in talk.messages),
    ]


DATABASE, SAID, ACTIONS, ASSERTIONS, UNFINISHED = "database", "not_said", "action_missing", "assertion", "unfinished"


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
