"""The verifier that compares the policy's tool calls with the demonstrated calls (PivotRL, arXiv:2603.21383, App. A.2).

- If the demonstrated reply makes calls, the policy's calls must fit the schemas of the available functions and match
  the demonstrated calls one to one, in any order (``data.toolcalls.match.equivalent``).
- If the demonstrated reply makes no call, any text without a call is accepted, except an empty text.

The verifier does not check whether the demonstrated reply was good. If the demonstrated reply cannot be parsed, no
reply is accepted. A demonstrated reply whose calls do not fit their schemas is not accepted itself.
"""

from __future__ import annotations

from turnwise.data.match_calls import equivalent
from turnwise.envs.dialogues.session import DialogueSession
from turnwise.envs.tool_messages import read_calls


def accepts(session: DialogueSession, action: str, expert: str) -> bool:
    """Returns whether ``action`` is as good as the demonstrated reply ``expert``. ``session`` is not changed."""
    if session.done:
        return False
    tools = session.problem.tools_at(session.turn)
    made, wanted = read_calls(action, session.form, tools), read_calls(expert, session.form, tools)
    if made is None or wanted is None or not (made or action.strip()):
        return False
    return equivalent(made, wanted, tools)
