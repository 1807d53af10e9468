"""The functional verifiers of software: which calls are as good as an expert's (PivotRL, arXiv:2603.21383, Eq. 6).

``name``: a call that fits its tool, and the tool is the one that the expert calls: the paper's choice for software.
``call``: the same arguments too.
``effect``: a call is accepted if it repairs the code, or if it shows more of the way to the fault than was shown so far: first
which function fails, and then where that function or its faulty line stands, among few other lines. The expert's call does not
count, so a clumsy expert's mistake cannot lower the bar, and accepted calls cannot go on for ever.
"""

from __future__ import annotations

from typing import Literal

from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.envs.software.session import SoftwareSession

Verifier = Literal["effect", "call", "name"]


def effective(session: SoftwareSession, action: str) -> bool:
    """Whether the action brings the repair forward; ``session`` is not changed.

    Raises:
        EnvironmentFault: the sandbox failed.
    """
    if session.done:
        return False
    twin = session.fork()
    twin.step(action)
    return twin.won or twin.found > session.found


def alike(session: SoftwareSession, action: str, expert: str, whole: bool) -> bool:
    """Whether both are calls that fit their tool, of one tool; with ``whole`` of the same arguments too."""
    try:
        ours, theirs = session.call(action), session.call(expert)
    except ToolCallError:
        return False
    return ours.name == theirs.name and (not whole or ours.arguments == theirs.arguments)
