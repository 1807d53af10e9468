"""The functional verifier of ``env=math``: it accepts code and answers that are as good as an expert's.

- An answer is accepted if math-verify finds it equal to the reference, in any notation, with or without use of the
  tool.
- Code is accepted if its last line of output is the problem's answer and no earlier snippet has printed this answer.
  Problems from files come without code; for them, code is also accepted if it prints the value that the expert's code
  prints.
- Code is refused if it fails, prints nothing new or prints something else. Once a snippet has printed the answer, all
  further code is refused.
"""

from __future__ import annotations

from turnwise.envs.math.session import MathSession


def accepts(session: MathSession, action: str, expert: str) -> bool:
    """Returns whether the action is accepted. ``session`` is not changed.

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
