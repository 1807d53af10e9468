"""Scripted experts: one makes the ground truth's calls, the other adds harmless mistakes and corrects each at once."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from turnwise.data.tool_schema import function_of
from turnwise.envs.dialogues.problem import W
from turnwise.envs.dialogues.session import DialogueSession
from turnwise.envs.dialogues.thoughts import muddled, thought
from turnwise.envs.experts import Chances
from turnwise.envs.tools import Tools
from turnwise.types import ToolCall

DONE = "Done."
_ROOM = 4  # number of replies to one user message that are kept free for mistakes


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """Probabilities of the clumsy expert's mistakes before each call. A mistake that would change the state is not
    made.

    Attributes:
        wrong: makes the call with a wrong value.
        unknown: makes the call with a function name that does not exist.
        missing: makes the call without one of its arguments.
        repeat: repeats the call before.
        look: makes a call that only reads.
        early: says the closing word instead of the call, which loses the episode.
    """

    wrong: float = 0.08
    unknown: float = 0.05
    missing: float = 0.06
    repeat: float = 0.06
    look: float = 0.08
    early: float = 0.0


@dataclass(frozen=True, slots=True)
class Planned:
    """One reply of the ground truth."""

    calls: tuple[ToolCall, ...]
    left: tuple[str, ...]  # functions that the request still needs, including those of this reply
    closing: str  # the text of a reply without calls


Reply = tuple[Sequence[ToolCall], str]
"""(calls, text) of one reply. The text is the thought before the calls or, if there are none, the whole reply."""


def planned(session: DialogueSession, closing: str) -> Iterator[Planned]:
    """Yields the ground truth with one call in each reply.

    If a user message needs more calls than replies are allowed, a reply has several calls.
    """
    for turn in session.problem.turns:
        at_once = math.ceil(len(turn.calls) / max(1, session.steps - _ROOM))
        names = tuple(call.name for call in turn.calls)
        for start in range(0, len(turn.calls), at_once or 1):
            yield Planned(turn.calls[start : start + at_once], names[start:], "")
        yield Planned((), (), turn.unable or closing)


def good(session: DialogueSession, closing: str, thinks: bool = False) -> Iterator[Reply]:
    """Yields the ground truth's replies.

    If ``thinks``, each reply begins with a list of the calls that are left to make.
    """
    for reply in planned(session, closing):
        yield reply.calls, (thought(reply.left) if thinks else "") + reply.closing


def clumsy(
    session: DialogueSession,
    closing: str,
    rng: random.Random,
    mistakes: Mistakes,
    thinks: bool = False,
    muddle: float = 0.0,
) -> Iterator[Reply]:
    """Yields the replies of :func:`good` with occasional mistakes before a call. ``session`` is the episode in which
    the expert acts.

    A task of a single reply has no room for a mistake. A mistake has a thought that fits it. A right reply has a wrong
    thought with the probability ``muddle``.
    """
    last: ToolCall | None = None
    replies = list(planned(session, closing))
    for place, reply in enumerate(replies):
        calls = reply.calls
        spare = session.horizon - session.turns - (len(replies) - place)
        if calls and not session.problem.one_reply and spare > 0 and session.steps_made < session.steps - _ROOM:
            drawn = drawn_of(rng, mistakes)
            tools = session.problem.tools_at(session.turn)
            made = mistake(session.world, tools, calls[0], last, rng, drawn)
            if made is not None or drawn == "early":
                plan = [made.name, *reply.left[1:]] if made else []
                yield [made] if made else [], (thought(plan) if thinks else "") + ("" if made else closing)
        before = ""
        if thinks:
            wrong = rng.random() < muddle
            before = muddled(reply.left, session.problem.tools_at(session.turn), rng) if wrong else thought(reply.left)
        yield calls, before + reply.closing
        last = calls[-1] if calls else None


def drawn_of(rng: random.Random, mistakes: Mistakes) -> str:
    """Returns the name of a random mistake, or an empty text for none."""
    names = [field.name for field in fields(mistakes)]
    weights = [getattr(mistakes, name) for name in names]
    return rng.choices([*names, ""], [*weights, 1 - sum(weights)])[0]


def mistake(
    world: W, tools: Tools, due: ToolCall, last: ToolCall | None, rng: random.Random, drawn: str
) -> ToolCall | None:
    """Returns a harmless call that differs from the right one; None if there is none.

    Args:
        world: the state before the call; it is not changed.
        tools: the tools that can be called.
        due: the right call.
        last: the call before it.
        drawn: the name of the mistake, see :class:`Mistakes`. For any other name, None is returned.
    """
    made: ToolCall | None = None
    if drawn == "wrong" and due.arguments:
        key = rng.choice(sorted(due.arguments))
        made = ToolCall(due.name, {**due.arguments, key: _other(due.arguments[key])})
    elif drawn == "unknown":
        made = ToolCall(f"{due.name}_all", due.arguments)
    elif drawn == "missing" and due.arguments:
        key = rng.choice(sorted(due.arguments))
        made = ToolCall(due.name, {name: value for name, value in due.arguments.items() if name != key})
    elif drawn == "repeat":
        made = last
    elif drawn == "look":
        looks = _looks(tools)
        made = rng.choice(looks) if looks else None
    if made is None or made == due:
        return None
    twin = world.fork()
    answer = twin.call(made)
    harmless = twin.same_place(world)
    return made if harmless and answer != twin.call(due) else None  # a call with the right call's answer is no mistake


def _looks(tools: Tools) -> list[ToolCall]:
    """Returns calls of available functions that need no arguments."""
    shown = map(function_of, tools)
    return [ToolCall(f["name"], {}) for f in shown if not (f.get("parameters") or {}).get("required")]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else []
