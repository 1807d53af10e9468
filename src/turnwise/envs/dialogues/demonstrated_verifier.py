"""The verifier that compares the policy's reply with the demonstrated reply by schema, name and arguments of their
calls (PivotRL, arXiv:2603.21383, App. A.2).

- If the demonstrated reply makes calls, the policy's calls must match them one to one
  (``data.toolcalls.match.equivalent``): the policy's calls must fit the schemas of the available functions, name the
  same functions and have equal arguments. The order of the calls in one reply does not matter. An argument may be left
  out if it has its default value. Numbers are compared as numbers, and whitespace at both ends of a text is ignored.
- If the demonstrated reply makes no call, any text without a call is accepted.

The verifier does not check whether the demonstrated reply was good. If the calls of the demonstrated reply cannot be
parsed or do not fit their schemas, no reply is accepted, not even the demonstrated reply itself.
"""

from __future__ import annotations

from turnwise.data.toolcalls.match import equivalent
from turnwise.envs.dialogues.session import DialogueSession
from turnwise.envs.tool_messages import read_calls


def accepts(session: DialogueSession, action: str, expert: str) -> bool:
    """Returns whether the policy's reply ``action`` makes the same tool calls as the demonstrated reply ``expert``, or
    whether both replies make no call. ``session`` is not changed.
    """
    if session.done:
        return False
    tools = session.problem.tools_at(session.turn)
    made, wanted = read_calls(action, session.form, tools), read_calls(expert, session.form, tools)
    if made is None or wanted is None or not (made or action.strip()):
        return False
    return equivalent(made, wanted, tools)
