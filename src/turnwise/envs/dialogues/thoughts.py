"""Writes the reasoning before an expert's reply: a list of the functions that must still be called for the request.

The judge of AWPO (arXiv:2512.19126, App. B.2) compares the policy's reasoning with this list. The environment ignores
the reasoning.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from turnwise.data.tool_schema import function_of
from turnwise.data.toolcalls import CLOSE_THINKING, OPEN_THINKING
from turnwise.envs.tool_messages import Tools

NOTHING = "nothing"


def thought(names: Sequence[str]) -> str:
    """Returns a thinking block with ``names``, the functions that are still to be called, in order."""
    return f"{OPEN_THINKING}left: {', '.join(names) or NOTHING}{CLOSE_THINKING}"


def muddled(names: Sequence[str], tools: Tools, rng: random.Random) -> str:
    """Returns a thinking block in which one function of ``names`` is left out or replaced by another tool.

    If ``names`` is empty, the block names one tool, unless there are no tools.
    """
    others = [name for name in (str(function_of(tool)["name"]) for tool in tools) if name not in names]
    place = rng.randrange(len(names)) if names else 0
    instead = [rng.choice(others)] if others and (len(names) < 2 or rng.random() < 0.5) else []
    return thought([*names[:place], *instead, *names[place + 1 :]])
