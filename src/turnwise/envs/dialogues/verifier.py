"""The functional verifier (PivotRL, arXiv:2603.21383, Eq. 6): it accepts replies that are as good as the ground truth.

A reply is accepted if it advances the user's request as far as the same number of calls of the ground truth would:

- Its calls are calls of the ground truth, or they fit the schemas of the available functions.
- Each of its calls replaces one call that is still due: afterwards, the rest of the ground truth still leads to the
  state and the answers that are checked. Other spellings, another order of independent calls, and another call with
  the same effect are therefore accepted. A needless or repeated call is not accepted, so no reply can be accepted again
  and again.
- If no call is due, or the request cannot be fulfilled, the reply must make no call. It may also make no call if the
  policy has made a call in this user turn and the state and the answers so far already fulfil the request.

The demonstrated reply has no influence, so a mistake of a clumsy expert does not lower the standard.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnwise.data.tool_schema import check_call
from turnwise.data.toolcalls.match import equivalent
from turnwise.envs.dialogues.score import holds
from turnwise.envs.dialogues.session import DialogueSession
from turnwise.envs.tools import read_calls
from turnwise.types import ToolCall


def accepts(session: DialogueSession, action: str) -> bool:
    """Returns whether the reply is accepted. ``session`` is not changed."""
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
    # The reply's calls are not all calls of the ground truth. They are accepted only if the rest of the ground truth
    # would fail without them.
    return any(serves(session, [*calls, *rest]) and not serves(session, rest) for rest in _rests(calls, due))


def still_due(session: DialogueSession) -> list[ToolCall]:
    """Returns the calls of the ground truth that are still missing in this user turn.

    First, the calls that the policy has already made are removed. If the remaining calls would then not fulfil the
    turn, another call of the policy may have replaced one of them. In this case, one more call is removed, provided
    that the calls left after it fulfil the turn.
    """
    due = _less(session.problem.turns[session.turn].calls, session.made)
    if not due or not session.made or serves(session, due):
        return due
    shorter = [due[:i] + due[i + 1 :] for i in range(len(due))]
    return next((rest for rest in shorter if serves(session, rest)), due)


def serves(session: DialogueSession, calls: Sequence[ToolCall]) -> bool:
    """Returns whether ``calls``, made in the current state, would fulfil the user's request."""
    world, turn = session.world.fork(), session.turn
    seen = [*session.seen, *(world.call(call) for call in calls)]
    truth = session.reference
    return world.same_state(truth.states[turn]) and holds(seen, truth.answers[turn])


def _rests(calls: Sequence[ToolCall], due: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
    """Yields the lists of due calls that may remain after ``calls`` have replaced the same number of due calls."""
    if len(calls) == 1:
        for i in range(len(due)):
            yield [*due[:i], *due[i + 1 :]]
    else:
        yield list(due[len(calls) :])


def _less(due: Sequence[ToolCall], made: Sequence[ToolCall]) -> list[ToolCall]:
    """Returns the due calls that remain after each call in ``made`` has removed one equal call, if there is one."""
    rest = list(due)
    for call in made:
        place = next((i for i, true in enumerate(rest) if equivalent([call], [true])), None)
        if place is not None:
            del rest[place]
    return rest
