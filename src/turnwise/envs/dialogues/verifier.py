"""The functional verifier (PivotRL, arXiv:2603.21383, Eq. 6) of environments with dialogues.

A reply of the policy is accepted if it advances the user's request as far as equally many calls of the ground truth:

- The reply's calls are calls of the ground truth, or they fit the schemas of the available functions.
- Each call of the reply replaces one call of the ground truth that was not made yet. The remaining calls of the ground
  truth must then still lead to the state and the answers that are checked. So another spelling, another order of
  independent calls, and another call with an equal effect are accepted. A needless or repeated call is not accepted.
- If no call of the ground truth is left, or if the request cannot be fulfilled, the reply must make no call. The reply
  may also make no call if the policy has made a call in this user turn and the state and the answers so far already
  fulfil the request.

The demonstrated reply has no influence on the verdict, so a clumsy expert's mistake changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnwise.data.match_calls import equivalent
from turnwise.data.tool_schema import check_call
from turnwise.envs.dialogues.multi_turn_check import holds
from turnwise.envs.dialogues.session import DialogueSession
from turnwise.envs.tool_messages import read_calls
from turnwise.types import ToolCall


def accepts(session: DialogueSession, action: str) -> bool:
    """Returns whether the verifier accepts the reply ``action``. ``session`` is not changed."""
    if session.done:
        return False
    tools = session.problem.tools_at(session.turn)
    calls = read_calls(action, session.form, tools)
    if calls is None or not (calls or action.strip()):
        return False
    due = still_due(session)
    if not calls:
        return not due or (bool(session.made) and serves(session, []))
    rest = _less(due, calls)
    if len(rest) == len(due) - len(calls):
        return serves(session, [*calls, *rest])
    if len(calls) > len(due) or any(check_call({"name": c.name, "arguments": c.arguments}, tools) for c in calls):
        return False
    # Some calls of the reply are not calls of the ground truth. The reply is accepted only if its calls and the rest of
    # the ground truth fulfil the request, and the rest alone would not.
    return any(serves(session, [*calls, *rest]) and not serves(session, rest) for rest in _rests(calls, due))


def still_due(session: DialogueSession) -> list[ToolCall]:
    """Returns the calls of the ground truth that are still missing in this user turn.

    First, the calls that the policy has made are removed from the ground truth. If the remaining calls would not fulfil
    the request, the policy may have replaced one of them by another call. One remaining call is then left out, provided
    that the others fulfil the request.
    """
    due = _less(session.problem.turns[session.turn].calls, session.made)
    if not due or not session.made or serves(session, due):
        return due
    shorter = [due[:i] + due[i + 1 :] for i in range(len(due))]
    return next((rest for rest in shorter if serves(session, rest)), due)


def serves(session: DialogueSession, calls: Sequence[ToolCall]) -> bool:
    """Returns whether ``calls``, made in the session's present state, would fulfil the user's request."""
    world, turn = session.world.fork(), session.turn
    seen = [*session.seen, *(world.call(call) for call in calls)]
    truth = session.reference
    return world.same_state(truth.states[turn]) and holds(seen, truth.answers[turn])


def _rests(calls: Sequence[ToolCall], due: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
    """Yields the calls of ``due`` that are left after each call of ``calls`` has replaced a call of ``due``.

    A single call may have replaced any call of ``due``. Several calls are assumed to have replaced the first calls.
    """
    if len(calls) == 1:
        for i in range(len(due)):
            yield [*due[:i], *due[i + 1 :]]
    else:
        yield list(due[len(calls) :])


def _less(due: Sequence[ToolCall], made: Sequence[ToolCall]) -> list[ToolCall]:
    """Returns the calls of ``due`` without those in ``made``. Each call in ``made`` removes at most one equal call."""
    rest = list(due)
    for call in made:
        place = next((i for i, true in enumerate(rest) if equivalent([call], [true])), None)
        if place is not None:
            del rest[place]
    return rest
