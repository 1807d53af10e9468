"""The interface of the simulated users of ``env=tau2``, and a simulated user that follows rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

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
        """Returns the user's last message; empty if the conversation is over."""
        return "" if self.ended or not self.messages else self.messages[-1][1]


class User(Protocol):
    """A simulated user, who answers the agent and does not see the agent's tool calls.

    ``scripted`` says whether the user's answers cost nothing and depend only on the conversation. If so, a verifier may
    compute the answer to a message that the agent has not sent.
    """

    scripted: ClassVar[bool]

    def begin(self, scenario: Mapping[str, Any]) -> Talk:
        """Returns a conversation that consists of the user's first message.

        Raises:
            EnvironmentFault: no answer of the user could be obtained. :meth:`reply` raises this error too.
        """
        ...

    def reply(self, talk: Talk, message: str, transferred: bool, satisfied: bool) -> Talk:
        """Returns the conversation with the agent's message and the user's answer added.

        Args:
            talk: the conversation so far.
            message: the agent's message.
            transferred: whether the agent has transferred the user to a human.
            satisfied: whether all checks of the task pass.
        """
        ...


@dataclass(frozen=True)
class ScriptedUser:
    """A simulated user that follows rules. The answers depend only on the conversation.

    The user has a list of facts: the sentences of the task's instructions, changed to the first person. The user begins
    with the reason for the call. If the agent asks a question, the user gives the facts that share a word with the
    question. If the agent asks who the user is, the user also gives the facts that identify the user. If the agent asks
    for everything, the user gives all remaining facts. If no fact fits a question, the user gives the next fact. If the
    agent asks for confirmation, the user agrees. The user ends the conversation when all checks of the task pass, after
    a transfer to a human, or at the ``patience``-th consecutive message of the agent that brings out no new fact.

    The user only compares words, and says more than people do, so it does not replace a person.

    Raises:
        ValueError: ``patience`` is below 1.
    """

    patience: int = 3
    scripted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience: must be at least 1, got {self.patience}")

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
    """Returns whether an agent's message asks for something."""
    return bool(_ASKS.search(message))


def facts(scenario: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the user's facts as two lists: the facts that identify the user, and all other facts."""
    instructions = _instructions(scenario)
    known = [instructions.get(key) for key in ("known_info", "unknown_info")]
    return _sentences(*known), _sentences(instructions.get("task_instructions"))


def first_person(text: str) -> str:
    """Returns an instruction to the user ("you want ...") as the user would say it ("I want ...")."""
    for pattern, mine in _PERSONS:
        text = pattern.sub(partial(_replaced, mine), text)
    return text


def _replaced(mine: str, found: re.Match[str]) -> str:
    after = found.expand(mine)
    return after[:1].upper() + after[1:] if found.group(0)[:1].isupper() else after


def _instructions(scenario: Mapping[str, Any]) -> Mapping[str, Any]:
    found = scenario["instructions"]
    return found if isinstance(found, Mapping) else {"reason_for_call": found}


def _sentences(*texts: str | None) -> list[str]:
    parts = [part.strip() for text in texts if text for part in re.split(r"(?<=[.!?])\s+|\n+", text)]
    return [first_person(part) for part in parts if re.search(r"\w", part)]


def _words(text: str) -> set[str]:
    found = {word.strip(".'").lower() for word in re.findall(r"[\w#@.'-]+", text)}
    return {word for word in found if len(word) > 3 or any(sign.isdigit() for sign in word)} - _EMPTY


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
