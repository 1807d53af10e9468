"""The verifier that compares a reply with the demonstrated one by schema, name and arguments (PivotRL,
arXiv:2603.21383, App. A.2).

- If the demonstrated reply makes calls, a reply is accepted if its calls match the demonstrated calls one to one
  (``data.toolcalls.match.equivalent``): they fit the schemas of the available functions, name the same functions and
  have equal arguments. Differences in spelling, in the order of calls in one reply, and in omitted defaults are
  ignored.
- If the demonstrated reply makes no call, any text without a call is accepted.

The verifier does not check whether the demonstrated reply was good. If the calls of the demonstrated reply cannot be
parsed or do not fit their schemas, no reply is accepted, not even the demonstrated reply itself.
"""

from __future__ import annotations

from turnwise.data.toolcalls.match import equivalent
from turnwise.envs.dialogues.session import DialogueSession
from turnwise.envs.tools import read_calls


def accepts(session: DialogueSession, action: str, expert: str) -> bool:
    """Returns whether the reply does the same as the demonstrated reply. ``session`` is not changed."""
    if session.done:
        return False
    tools = session.problem.tools_at(session.turn)
    made, wanted = read_calls(action, session.form, tools), read_calls(expert, session.form, tools)
    if made is None or wanted is None or not (made or action.strip()):
        return False
    return equivalent(made, wanted, tools)
