"""The customer of tau2: a script that gives the scenario's facts when asked, or a model at an endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol

from turnwise.env import EnvironmentFault
from turnwise.http_client import Fault
from turnwise.judges.endpoint import CachedModel, key_of
from turnwise_worlds.tau2.domains import (
    of_package,
)

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
