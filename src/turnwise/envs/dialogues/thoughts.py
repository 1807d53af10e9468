"""What an expert thinks before a reply, where demonstrations state their reasoning: which calls the request still needs.

The judge of AWPO (arXiv:2512.19126, App. B.2) holds a policy's reasoning against it. No check of the environment reads it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from turnwise.data.tool_schema import function_of
from turnwise.data.toolcalls.reply import CLOSE_THINKING, OPEN_THINKING
from turnwise.envs.tools import Tools

NOTHING = "nothing"


def thought(names: Sequence[str]) -> str:
    """Returns a plan as a thinking block: the functions to call from here on, in order."""
    return f"{OPEN_THINKING}left: {', '.join(names) or NOTHING}{CLOSE_THINKING}"


def muddled(names: Sequence[str], tools: Tools, rng: random.Random) -> str:
    """Returns a wrong plan: a function is left out or replaced by another; an empty plan gets a function."""
    others = [name for name in (str(function_of(tool)["name"]) for tool in tools) if name not in names]
    place = rng.randrange(len(names)) if names else 0
    instead = [rng.choice(others)] if others and (len(names) < 2 or rng.random() < 0.5) else []
    return thought([*names[:place], *instead, *names[place + 1 :]])
