"""The functional verifier of ``env=math``.

- An answer is accepted if it equals the right answer. The policy need not have used the Python tool.
- Code is accepted if the last line that it prints is the problem's answer, and no earlier snippet of the episode has
  printed this answer as its last line.
- Problems from files come without code. For these problems, code is also accepted if its last line equals the last line
  that the expert's code prints, and no earlier snippet has printed this line.
- All other code is refused.
"""

from __future__ import annotations

from turnwise.envs.math.session import MathSession


def accepts(session: MathSession, action: str, expert: str) -> bool:
    """Returns whether the verifier accepts the policy's reply ``action``. ``session`` is not changed.

    Raises:
        EnvironmentFault: the sandbox or the worker of math-verify failed.
    """
    call = session.read(action)
    if session.done or call is None:
        return False
    tool, argument = call
    if tool == "answer":
        return session.equal(argument, session.problem.answer)
    if session.computed():
        return False
    value = session.value(argument)
    if value is None:
        return False
    if session.equal(value, session.problem.answer):
        return True
    wanted = session.read(expert)
    if session.problem.code is not None or wanted is None or wanted[0] != "python":
        return False
    target = session.value(wanted[1])
    return target is not None and value not in session.values and session.equal(value, target)
