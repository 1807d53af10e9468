"""Experts: the ground truth call by call, and the same with harmless mistakes that are corrected at once."""

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
_ROOM = 4  # replies to one user turn that are kept free for mistakes


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """Probabilities, before each call of the clumsy expert. A mistake that would change the state is not made.

    Attributes:
        wrong: the call with a wrong value.
        unknown: the call under a name that no function has.
        missing: the call without one of its arguments.
        repeat: the call before, again.
        look: a call that only looks.
        early: the closing word instead of the call, which loses the episode.
    """

    wrong: float = 0.08
    unknown: float = 0.05
    missing: float = 0.06
    repeat: float = 0.06
    look: float = 0.08
    early: float = 0.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A reply of the ground truth."""

    calls: tuple[ToolCall, ...]
    left: tuple[str, ...]  # functions that the request needs from here on, those of this reply among them
    closing: str  # what is said where there are no calls


Reply = tuple[Sequence[ToolCall], str]
"""Calls and the thought before them, which may be empty; or what is said instead of any."""


def planned(session: DialogueSession, closing: str) -> Iterator[Planned]:
    """Yields the ground truth, one call a reply; more where a user turn needs more calls than replies are allowed."""
    for turn in session.problem.turns:
        at_once = math.ceil(len(turn.calls) / max(1, session.steps - _ROOM))
        names = tuple(call.name for call in turn.calls)
        for start in range(0, len(turn.calls), at_once or 1):
            yield Planned(turn.calls[start : start + at_once], names[start:], "")
        yield Planned((), (), turn.unable or closing)


def good(session: DialogueSession, closing: str, thinks: bool = False) -> Iterator[Reply]:
    """Yields the ground truth; where it ``thinks``, each reply begins with what is left to call."""
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
    """:func:`good`, with a mistake now and then before a call. ``session`` is the episode that they are made in.

    Where one reply is the whole task there is no room for a mistake. A mistake has its own thought before it; a right reply has
    the thought of other calls with the probability ``muddle``.
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
    """Returns the name of a mistake, or nothing."""
    names = [field.name for field in fields(mistakes)]
    weights = [getattr(mistakes, name) for name in names]
    return rng.choices([*names, ""], [*weights, 1 - sum(weights)])[0]


def mistake(
    world: W, tools: Tools, due: ToolCall, last: ToolCall | None, rng: random.Random, drawn: str
) -> ToolCall | None:
    """Returns a harmless call that is not the due one, or None.

    Args:
        world: the state before the call, which is not changed.
        tools: what can be called.
        due: the call that is to be made.
        last: the call before it.
        drawn: the name of the mistake, see :class:`Mistakes`; None is returned for the other names.
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
    return made if harmless and answer != twin.call(due) else None  # the same answer would serve as well


def _looks(tools: Tools) -> list[ToolCall]:
    """Functions at hand that need no value."""
    shown = map(function_of, tools)
    return [ToolCall(f["name"], {}) for f in shown if not (f.get("parameters") or {}).get("required")]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else []
