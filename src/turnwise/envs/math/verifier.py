"""The functional verifier of ``env=math``: which computations and answers are as good as an expert's.

- An answer is accepted where math-verify finds it equal to the reference, however it is written and with or without the tool.
- Code is accepted where its last line is the problem's answer and no snippet has printed that before. For problems from files,
  which show no steps, the value that the expert's code prints is accepted too.
- Code that fails, prints nothing new or prints something else is refused. So is any code once the answer has been printed.
"""

from __future__ import annotations

from turnwise.envs.math.session import MathSession


def accepts(session: MathSession, action: str, expert: str) -> bool:
    """Returns the verdict; ``session`` is not changed.

    Raises:
        EnvironmentFault: the sandbox or math-verify's worker failed.
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
