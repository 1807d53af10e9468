"""The functional verifier of ``env=tau2`` (PivotRL, arXiv:2603.21383, Eq. 6).

The benchmark lists the tool calls that solve a task. A listed call is due while it still has to be made. A read is a
tool call that changes nothing.

- A call is accepted if it is due or replaces a due call. A call replaces a due call if the remaining due calls pass all
  checks of the task after this call, and do not pass all checks without it.
- A read that is not listed is accepted if it shows, for the first time, the answer of a due read, an identifier that a
  due call needs, or a part of the state that a due call changes.
- A call that changes the state is accepted only after the user has agreed. This rule does not hold in solo mode or if a
  model simulates the user.
- A message to the user is accepted in four cases: it makes the user give a new fact; it names a due change and makes
  the user agree; it gives required information while no read is due; or all checks pass after it.
- If a model simulates the user, a message is also accepted if the expert writes a message in this turn. This is the
  only influence of the expert's reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from turnwise.data.match_calls import same_value
from turnwise.data.tool_schema import check_call
from turnwise.data.toolcalls import ToolCallError
from turnwise.envs.tau2.end_check import missing
from turnwise.envs.tau2.lookups import identifiers, seen, unknown
from turnwise.envs.tau2.problem import TRANSFER, Gold
from turnwise.envs.tau2.session import Tau2Session
from turnwise.envs.tau2.user import asks
from turnwise.envs.tau2.world import FAILED, READS, World
from turnwise.envs.tool_messages import read_calls
from turnwise.types import ToolCall

Due = list[tuple[Gold, bool]]
"""One pair for each listed call that still has to be made: the call, and whether it changes the state."""


def accepts(session: Tau2Session, action: str, expert: str) -> bool:
    """Returns whether the verifier accepts the agent's reply ``action``. ``session`` is not changed.

    Raises:
        EnvironmentFault: the databases cannot be used.
    """
    if session.done:
        return False
    try:
        reply = session.read(action)
    except ToolCallError:
        return False
    if session.due is None:
        session.due = tuple(still_due(session))
    if not session.due:
        return False
    due = session.due[0]
    if not reply.calls:
        return _message(session, reply.content, expert, due)
    if session.talk is None and reply.calls[0].name == "done":
        return not session.reference.fault(session.world, session.made, ())
    return _calls(session, reply.calls, due)


def still_due(session: Tau2Session) -> Iterator[Due]:
    """Yields at most one list: the listed calls that still have to be made to solve the task.

    Calls that the agent has made are left out, and so are reads whose answers the agent has seen. If the remaining
    calls do not pass the checks, the agent may have replaced one of them. Then one more call is left out. If no list
    passes the checks, nothing is yielded.
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


def _leads(session: Tau2Session, world: World, made: Sequence[ToolCall], due: Due) -> bool:
    return session.reference.leads(world, made, [gold for gold, _ in due])


def _calls(session: Tau2Session, calls: Sequence[ToolCall], due: Due) -> bool:
    tools, world, rest = session.reference.problem.tools, session.world.fork(), due
    agreed = session.talk is None or session.talk.agreed or not session.user.scripted
    # whether the agent makes the changes in the benchmark's order; if so, the remaining calls pass the checks
    in_order = True
    for place, call in enumerate(calls):
        if check_call({"name": call.name, "arguments": call.arguments}, tools):
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
    session: Tau2Session, world: World, untouched: World, made: Sequence[ToolCall], due: Due
) -> Due | None:
    """Returns ``due`` without the call that the agent's latest call replaces; None if it replaces no due call.

    The latest call has changed the databases from ``untouched`` to ``world``.
    """
    for i, (_, writes) in enumerate(due):
        rest = due[:i] + due[i + 1 :]
        if writes and _leads(session, world, made, rest) and not _leads(session, untouched, made, rest):
            return rest
    return None


def _without(due: Due, call: ToolCall) -> Due | None:
    """Returns ``due`` without the given call; None if ``due`` does not contain the call."""
    place = next((i for i, (gold, _) in enumerate(due) if _same(gold, call)), None)
    return None if place is None else due[:place] + due[place + 1 :]


def _changes(due: Due, call: ToolCall) -> bool:
    """Returns whether the call in ``due`` that equals ``call`` changes the state."""
    return next(writes for gold, writes in due if _same(gold, call))


def _same(gold: Gold, call: ToolCall) -> bool:
    """Returns whether a call of the agent is the listed call ``gold``.

    If the benchmark names the arguments to compare, or if ``call`` transfers the user to a human, :meth:`Gold.matches`
    decides. Otherwise all arguments must be equal.
    """
    if gold.compared is not None or call.name == TRANSFER:
        return gold.matches(call)
    return call.name == gold.call.name and same_value(dict(call.arguments), dict(gold.call.arguments))


def _tells(session: Tau2Session, world: World, call: ToolCall, answer: str, due: Due) -> bool:
    """Returns whether the answer of the read ``call`` is new to the agent and is useful.

    An answer is useful if it is the answer of a due read, or if it contains an identifier that a due call needs or a
    state that a due call changes. ``world`` is the state before the read.
    """
    if seen(session, answer):
        return False
    if any(value in answer for value in unknown(session, [gold.call for gold, _ in due])):
        return True
    for gold, writes in due:
        after = world.fork()
        told = after.call(gold.call)
        if (after.call(call) != answer) if writes else (told == answer):
            return True
    return False


def _message(session: Tau2Session, text: str, expert: str, due: Due) -> bool:
    reference, talk = session.reference, session.talk
    if talk is None:
        return False
    said = (*session.said, text)
    if not reference.fault(session.world, session.made, said):
        return True
    before, after = missing(reference.problem.said, session.said), missing(reference.problem.said, said)
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
