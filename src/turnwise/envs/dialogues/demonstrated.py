"""The verifier that compares with the demonstrated reply: schema, name, arguments (PivotRL, arXiv:2603.21383, App. A.2).

- Where calls were demonstrated, a reply is accepted whose calls are the same one to one
  (``data.toolcalls.match.equivalent``): they fit the schemas of the functions at hand, name the same functions and
  have equal arguments. Spelling, the order of calls that are made together and defaults that are left out do not
  count.
- Where none were, any text without a call is accepted.

Whether the demonstrated reply was a good one does not count. One whose calls cannot be read, or do not fit their
schemas, is an error: nothing is accepted in its place, itself included.
"""

from __future__ import annotations

from turnwise.data.toolcalls.match import equivalent
from turnwise.envs.dialogues.session import DialogueSession
from turnwise.envs.tools import read_calls


def accepts(session: DialogueSession, action: str, expert: str) -> bool:
    """Whether the reply does what the demonstrated one does; ``session`` is not changed."""
    if session.done:
        return False
    tools = session.problem.tools_at(session.turn)
    made, wanted = read_calls(action, session.form, tools), read_calls(expert, session.form, tools)
    if made is None or wanted is None or not (made or action.strip()):
        return False
    return equivalent(made, wanted, tools)
