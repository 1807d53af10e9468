"""The functional verifiers of software: which calls are as good as an expert's (PivotRL, arXiv:2603.21383, Eq. 6).

``name``: a call that fits its tool, and the tool is the one that the expert calls: the paper's choice for software.
``call``: the same arguments too.
``effect``: a call is accepted if it brings the repair forward, whatever the expert does. It repairs the code, or it shows more
of the way there than was shown so far: which function fails, then, and only then, where that stands or its faulty line, among few
others. So a mistake of a
clumsy expert cannot lower the bar, and no accepted calls go on for ever.
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
