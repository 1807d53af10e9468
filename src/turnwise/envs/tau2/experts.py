"""The scripted experts of ``env=tau2``, which make the tool calls that the benchmark lists as the task's solution.

The benchmark often does not list how the arguments of these calls are found. So an expert first asks the user for all
facts. It looks up information that it needs and has not seen, asks for confirmation before the first change, makes the
calls one by one, gives the required information, and ends the conversation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from turnwise.envs.dialogues.experts import Mistakes, Reply, drawn_of, mistake
from turnwise.envs.tau2.end_check import missing
from turnwise.envs.tau2.lookups import lookup, seen
from turnwise.envs.tau2.package import toolbox
from turnwise.envs.tau2.problem import TRANSFER, Gold
from turnwise.envs.tau2.session import ENDING, Tau2Session

ASK = "I will help you with that. Could you tell me who you are, and everything else that I should know?"
CLOSE = "All of this is done."
HOLD = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
_ROOM = 4  # number of spare turns that must be left after a mistake of the clumsy expert


def good(session: Tau2Session) -> Iterator[Reply]:
    """Yields the replies of the good expert. The caller applies each reply to ``session`` before it takes the next."""
    solo = session.talk is None
    if not solo:
        yield [], ASK
    confirmed = solo
    for at, (gold, writes) in enumerate(session.reference.steps):
        if not writes and not _new(session, gold):
            continue
        yield from _prepared(session, [(gold, writes)])
        if writes and not confirmed:
            changes = [step for step in session.reference.steps[at:] if step[1]]
            yield from _prepared(session, changes)
            yield [], _confirm([each for each, _ in changes])
            confirmed = True
        yield [gold.call], ""
    if solo:
        yield [ENDING], ""
    else:
        yield [], closing(session)


def closing(session: Tau2Session) -> str:
    """Returns the expert's last message, with all required information that the user has not got yet."""
    moved = any(call.name == TRANSFER for call in session.made)
    told = missing(session.reference.problem.said, session.said)
    return " ".join([HOLD if moved else CLOSE, *([f"To sum up: {'; '.join(told)}."] if told else [])])


def clumsy(session: Tau2Session, rng: random.Random, mistakes: Mistakes) -> Iterator[Reply]:
    """Yields the replies of :func:`good`, with occasional harmless mistakes before a tool call."""
    planned = 2 * len(session.reference.steps)  # twice, because a look-up may precede each call
    # these tools do not include ``done``, because ending the episode would not be harmless
    tools = toolbox(session.reference.problem.domain).tools
    for calls, text in good(session):
        if calls and calls[0] != ENDING and session.horizon - session.turns - planned > _ROOM:
            last = session.made[-1] if session.made else None
            made = mistake(session.world, tools, calls[0], last, rng, drawn_of(rng, mistakes))
            if made is not None:
                yield [made], ""
        yield calls, text


def _new(session: Tau2Session, gold: Gold) -> bool:
    """Returns whether the expert has to make a listed call that changes nothing in the databases.

    This is so if the answer would be new to the expert, if the benchmark requires the call, or if the call transfers
    the user to a human.
    """
    required = session.reference.problem.required and not any(gold.matches(call) for call in session.made)
    return required or gold.call.name == TRANSFER or not seen(session, session.world.fork().call(gold.call))


def _prepared(session: Tau2Session, steps: Sequence[tuple[Gold, bool]]) -> Iterator[Reply]:
    """Yields the look-ups that the expert makes before the calls in ``steps``, one reply for each look-up."""
    for gold, writes in steps:
        while found := lookup(session, gold.call, writes):
            yield [found], ""


def _confirm(changes: Sequence[Gold]) -> str:
    """Returns the expert's message that lists the planned changes and asks the user to confirm them."""
    lines = [
        f"- {gold.call.name.replace('_', ' ')}: "
        + ", ".join(f"{name} {_plain(value)}" for name, value in gold.call.arguments.items())
        for gold in changes
    ]
    return "This is what I will do:\n" + "\n".join(lines) + "\nDo you confirm (yes or no)?"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
