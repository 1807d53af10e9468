"""Whether a reply is as good as the expert's in tau2: it makes a call that is still due, or tells the customer what is due."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from turnwise.data.match_calls import same_value
from turnwise.data.tool_schema import misfits
from turnwise.types import ToolCall
from turnwise_worlds.tau2.domains import FAILED, READS, TRANSFER, DomainDatabases, Gold
from turnwise_worlds.tau2.session import Tau2Session, identifiers, missing, seen, unknown
from turnwise_worlds.tau2.user import asks
from turnwise_worlds.tool_environment import read_calls

Due = list[tuple[Gold, bool]]
"""One pair for each listed call that still has to be made: the call, and whether it changes the state."""


def still_due(session: Tau2Session) -> Iterator[Due]:
    """Yields the listed calls that are still due, without those that were made and reads whose answers were seen. If
    they do not pass the checks, the agent may have replaced one, so one more is left out. Yields nothing if none
    passes.
    """
    due = list(session.reference.steps)
    for call in session.made:
        less = _without(due, call)
        due = due if less is None else less
    due = [(gold, writes) for gold, writes in due if writes or not _answered(session, gold)]
    shorter = (due[:i] + due[i + 1 :] for i in range(len(due)))
    choices = (rest for rest in (due, *shorter) if _leads(session, session.world, session.made, rest))
    yield from islice(choices, 1)


def _answered(session: Tau2Session, gold: Gold) -> bool:
    if session.reference.problem.required or gold.call.name == TRANSFER:
        return False
    return seen(session, session.world.fork().call(gold.call))


def _leads(session: Tau2Session, world: DomainDatabases, made: Sequence[ToolCall], due: Due) -> bool:
    return session.reference.leads(world, made, [gold for gold, _ in due])


def accepts_calls(session: Tau2Session, calls: Sequence[ToolCall], due: Due) -> bool:
    tools, world, rest = session.reference.problem.tools, session.world.fork(), due
    agreed = session.talk is None or session.talk.agreed or not session.user.scripted
    # whether the agent makes the changes in the benchmark's order; if so, the remaining calls pass the checks
    in_order = True
    for place, call in enumerate(calls):
        if misfits(call, tools):
            return False
        left = _without(rest, call)
        before, untouched = world.state(), world.fork()
        answer = world.call(call)
        changed = world.state() != before
        if changed and not agreed:
            return False
        if left is not None:
            first = next((gold for gold, writes in rest if writes), None)
            in_order &= (first is not None and _same(first, call)) or not (changed or _changes(rest, call))
        elif changed:
            made = [*session.made, *calls[: place + 1]]
            left = _stands_for_one(session, world, untouched, made, rest)
            if left is None:
                return False
        else:
            if not call.name.startswith(READS) or answer.startswith(FAILED):
                return False
            if not _tells(session, untouched, call, answer, rest):
                return False
            left = [(gold, writes) for gold, writes in rest if writes or untouched.fork().call(gold.call) != answer]
        if call.name == TRANSFER and left:
            return False
        rest = left
    return in_order or _leads(session, world, [*session.made, *calls], rest)


def _stands_for_one(
    session: Tau2Session, world: DomainDatabases, untouched: DomainDatabases, made: Sequence[ToolCall], due: Due
) -> Due | None:
    """Returns ``due`` without the call that the agent's latest, which changed ``untouched`` to ``world``, replaces;
    None if it replaces none.
    """
    for i, (_, writes) in enumerate(due):
        rest = due[:i] + due[i + 1 :]
        if writes and _leads(session, world, made, rest) and not _leads(session, untouched, made, rest):
            return rest
    return None


def _without(due: Due, call: ToolCall) -> Due | None:
    place = next((i for i, (gold, _) in enumerate(due) if _same(gold, call)), None)
    return None if place is None else due[:place] + due[place + 1 :]


def _changes(due: Due, call: ToolCall) -> bool:
    return next(writes for gold, writes in due if _same(gold, call))


def _same(gold: Gold, call: ToolCall) -> bool:
    """All arguments must be equal, unless the benchmark names those to compare or ``call`` is a transfer to a human."""
    if gold.compared is not None or call.name == TRANSFER:
        return gold.matches(call)
    return call.name == gold.call.name and same_value(dict(call.arguments), dict(gold.call.arguments))


def _tells(session: Tau2Session, world: DomainDatabases, call: ToolCall, answer: str, due: Due) -> bool:
    """Whether a read's answer is new and useful: it is the answer of a due read, or has an identifier that a due call
    needs or a state that it changes. ``world`` is the state before the read.
    """
    if seen(session, answer):
        return False
    if any(value in answer for value in unknown(session, [gold.call for gold, _ in due])):
        return True
    for gold, writes in due:
        after = world.fork()
        observation = after.call(gold.call)
        if (after.call(call) != answer) if writes else (observation == answer):
            return True
    return False


def accepts_message(session: Tau2Session, text: str, expert: str, due: Due) -> bool:
    reference, talk = session.reference, session.talk
    if talk is None:
        return False
    texts = (*session.said, text)
    if not reference.fault(session.world, session.made, texts):
        return True
    before, after = missing(reference.problem.said, session.said), missing(reference.problem.said, texts)
    if len(after) < len(before) and all(writes for _, writes in due):
        return True
    if not session.user.scripted:
        return read_calls(expert, session.form, reference.problem.tools) == ()
    if not asks(text):
        return False
    answer = session.user.reply(talk, text, transferred=False, satisfied=False)
    if answer.told != talk.told:
        return True
    changes = [gold.call for gold, writes in due if writes]
    if talk.agreed or not answer.agreed or unknown(session, changes):
        return False
    return any(value in text for call in changes for value in identifiers(call.arguments))
