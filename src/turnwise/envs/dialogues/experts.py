"""Scripted experts of environments with dialogues, which make the calls of the ground truth.

The clumsy expert sometimes makes a mistake before a correct call. A mistake does not change the state. Only the mistake
``early`` loses the episode, because it ends the user turn without the correct call.
"""

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
from turnwise.envs.tool_messages import Tools
from turnwise.types import ToolCall

# To one user message, the experts plan at most ``steps`` minus this number of correct replies with calls. The rest of
# the limit ``steps`` is for the clumsy expert's mistakes.
_ROOM = 4


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """The probabilities with which the clumsy expert makes each kind of mistake before a call.

    Attributes:
        wrong: the expert makes the call with a wrong value of one argument.
        unknown: the expert makes the call with a function name that does not exist.
        missing: the expert makes the call without one of its arguments.
        repeat: the expert repeats its previous correct call.
        look: the expert makes a call that needs no arguments and only reads the state.
        early: the expert says the closing word instead of making the call, which loses the episode.
    """

    wrong: float = 0.08
    unknown: float = 0.05
    missing: float = 0.06
    repeat: float = 0.06
    look: float = 0.08
    early: float = 0.0


@dataclass(frozen=True, slots=True)
class Planned:
    """One reply of the good expert."""

    calls: tuple[ToolCall, ...]
    left: tuple[str, ...]  # names of the functions that the request still needs, including those of this reply
    closing: str  # the text of a reply without calls; empty if the reply has calls


Reply = tuple[Sequence[ToolCall], str]
"""One reply of an expert as a pair (calls, text). The text is the thought before the calls; in a reply without calls,
the text is the whole reply.
"""


def planned(session: DialogueSession, closing: str) -> Iterator[Planned]:
    """Yields the correct replies of a whole dialogue in order.

    The replies to a user message make the calls of the ground truth, and a closing reply without calls ends the user
    turn. A reply makes one call, or several if a user message needs more than ``session.steps - _ROOM`` calls.
    """
    for turn in session.problem.turns:
        at_once = math.ceil(len(turn.calls) / max(1, session.steps - _ROOM))
        names = tuple(call.name for call in turn.calls)
        for start in range(0, len(turn.calls), at_once or 1):
            yield Planned(turn.calls[start : start + at_once], names[start:], "")
        yield Planned((), (), turn.unable or closing)


def good(session: DialogueSession, closing: str, thinks: bool = False) -> Iterator[Reply]:
    """Yields the replies of the good expert.

    If ``thinks`` is true, each reply begins with a list of the calls that are still to be made.
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
    """Yields the replies of the clumsy expert: those of :func:`good`, with occasional mistakes before a call.

    The expert makes no wrong call in a task in which the first reply with a call ends the user turn. If ``thinks`` is
    true, each reply begins with a thought: before a mistake, the thought lists the mistaken call, and before a correct
    reply, the thought is wrong with probability ``muddle``.
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
    """Returns the name of a random kind of mistake, or an empty text for no mistake."""
    names = [field.name for field in fields(mistakes)]
    weights = [getattr(mistakes, name) for name in names]
    return rng.choices([*names, ""], [*weights, 1 - sum(weights)])[0]


def mistake(
    world: W, tools: Tools, due: ToolCall, last: ToolCall | None, rng: random.Random, drawn: str
) -> ToolCall | None:
    """Returns a wrong call of the kind ``drawn`` that does not change the state; None if there is no wrong call.

    Args:
        world: the state before the call. ``world`` is not changed.
        tools: the tools that can be called.
        due: the correct call.
        last: the last correct call; None if the expert made no call yet for this user message.
        rng: the random generator.
        drawn: the name of a field of :class:`Mistakes`. For any other text, and for ``early``, the result is None.
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
    # a call is not a mistake if the correct call would get the same answer
    return made if harmless and answer != twin.call(due) else None


def _looks(tools: Tools) -> list[ToolCall]:
    """Returns one call without arguments for each tool that needs no arguments."""
    shown = map(function_of, tools)
    return [ToolCall(f["name"], {}) for f in shown if not (f.get("parameters") or {}).get("required")]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else []
