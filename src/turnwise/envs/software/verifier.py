"""The functional verifiers of ``env=software``. They accept calls that are as good as the expert's call (PivotRL,
arXiv:2603.21383, Eq. 6).

- ``name`` accepts a valid call if the expert calls the same tool. This is the paper's choice for software.
- ``call`` accepts a valid call if the expert calls the same tool with the same arguments.
- ``effect`` accepts a call if it repairs the code, or if its answer shows more of the fault than was shown so far:
  first which function fails, then the place of this function or its wrong line. A search that shows many lines counts
  as showing nothing. The expert's call has no influence, so a mistake of a clumsy expert does not change which calls
  are accepted. Repeating a call shows nothing new, so the repeated call is not accepted.
"""

from __future__ import annotations

from typing import Literal

from turnwise.data.toolcalls.parsing import ToolCallError
from turnwise.envs.software.session import SoftwareSession

Verifier = Literal["effect", "call", "name"]


def effective(session: SoftwareSession, action: str) -> bool:
    """Returns whether the policy's action repairs the code or shows more of the fault. ``session`` is not changed.

    Raises:
        EnvironmentFault: the sandbox failed.
    """
    if session.done:
        return False
    twin = session.fork()
    twin.step(action)
    return twin.won or twin.found > session.found


def alike(session: SoftwareSession, action: str, expert: str, whole: bool) -> bool:
    """Returns whether the policy's action and the expert's action are valid calls of the same tool.

    If ``whole`` is true, the two calls must also have the same arguments.
    """
    try:
        ours, theirs = session.call(action), session.call(expert)
    except ToolCallError:
        return False
    return ours.name == theirs.name and (not whole or ours.arguments == theirs.arguments)
