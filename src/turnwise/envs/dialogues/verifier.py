"""The functional verifier: which replies are as good as the ground truth's next one (PivotRL, arXiv:2603.21383, Eq. 6).

A reply is accepted where it serves the user's turn as far as the same number of calls of the ground truth would:

- its calls are the ground truth's own, or fit the schemas of the functions at hand;
- each replaces one call that is still due: after them the rest of the ground truth still leads to the state and the answers that
  are checked. So other spellings, another order of independent calls, and another call with the same effect are accepted. A
  needless or repeated call is not, and no accepted reply can be repeated for ever;
- where nothing is due, or the request cannot be served, it makes no call. It may make none where an earlier answer holds what is
  due.

The demonstrated reply does not count: a mistake of a clumsy expert cannot lower the bar.
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
    """Whether the reply is accepted; ``session`` is not changed."""
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
    # Not the ground truth's own calls: they must stand for what the others could not do without.
    return any(serves(session, [*calls, *rest]) and not serves(session, rest) for rest in _rests(calls, due))


def still_due(session: DialogueSession) -> list[ToolCall]:
    """Returns the calls of the ground truth that this user turn still lacks.

    Calls that were made word for word are removed. Where the rest then does not serve the turn, because another call replaced
    one of them, one more is removed if the rest then serves it.
    """
    due = _less(session.problem.turns[session.turn].calls, session.made)
    if not due or not session.made or serves(session, due):
        return due
    shorter = [due[:i] + due[i + 1 :] for i in range(len(due))]
    return next((rest for rest in shorter if serves(session, rest)), due)


def serves(session: DialogueSession, calls: Sequence[ToolCall]) -> bool:
    """Whether these calls would serve the user's turn."""
    world, turn = session.world.fork(), session.turn
    seen = [*session.seen, *(world.call(call) for call in calls)]
    truth = session.reference
    return world.same_state(truth.states[turn]) and holds(seen, truth.answers[turn])


def _rests(calls: Sequence[ToolCall], due: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
    """Yields what may be left of the due calls after as many others."""
    if len(calls) == 1:
        for i in range(len(due)):
            yield [*due[:i], *due[i + 1 :]]
    else:
        yield list(due[len(calls) :])


def _less(due: Sequence[ToolCall], made: Sequence[ToolCall]) -> list[ToolCall]:
    """Returns the due calls without one for each call that was made."""
    rest = list(due)
    for call in made:
        place = next((i for i, true in enumerate(rest) if equivalent([call], [true])), None)
        if place is not None:
            del rest[place]
    return rest
