"""The functional verifiers of ``env=software`` (PivotRL, arXiv:2603.21383, Eq. 6).

- ``name`` accepts a valid call of the tool that the expert calls. This is the paper's choice for software.
- ``call`` accepts a valid call of the tool that the expert calls, with the arguments of the expert's call.
- ``effect`` accepts a call if it repairs the code, or if its answer shows more of the fault than was shown so far:
  first the name of the function that fails, then its place or its wrong line. A search that shows more than 3 lines
  counts as showing nothing. The expert's call has no influence.
"""

from __future__ import annotations

from typing import Literal

from turnwise.data.toolcalls import ToolCallError
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
    """Returns whether the policy's action and the expert's action are valid calls of one tool.

    If ``whole`` is true, the arguments of the two calls must also be equal.
    """
    try:
        ours, theirs = session.call(action), session.call(expert)
    except ToolCallError:
        return False
    return ours.name == theirs.name and (not whole or ours.arguments == theirs.arguments)
