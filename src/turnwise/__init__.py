"""Turnwise trains language-model agents with reinforcement learning at the level of turns. It stores all rollouts that
start in the same state as one tree, whose nodes are turns. ``turnwise.api`` describes the functions of this package.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnwise.api import Policy as Policy
    from turnwise.api import Run as Run
    from turnwise.api import World as World
    from turnwise.api import load_policy as load_policy
    from turnwise.api import make_env as make_env
    from turnwise.api import play as play
    from turnwise.api import rewards as rewards
    from turnwise.api import states as states
    from turnwise.api import train as train
    from turnwise.methods import credit as credit
    from turnwise.methods import loss as loss
    from turnwise.methods.awpo import AWPO as AWPO
    from turnwise.methods.grpo import GRPO as GRPO
    from turnwise.methods.pivotrl import PivotRL as PivotRL
    from turnwise.methods.selective import SelectiveRollout as SelectiveRollout
    from turnwise.methods.sft import SFT as SFT
    from turnwise.methods.trace import TRACE as TRACE
    from turnwise.rollouts.pack import pack as pack

__version__ = "0.1.0"

__all__ = [
    "AWPO",
    "GRPO",
    "SFT",
    "TRACE",
    "PivotRL",
    "Policy",
    "Run",
    "SelectiveRollout",
    "World",
    "credit",
    "load_policy",
    "loss",
    "make_env",
    "pack",
    "play",
    "rewards",
    "states",
    "train",
]

_WHERE = {
    "SFT": "methods.sft",
    "GRPO": "methods.grpo",
    "PivotRL": "methods.pivotrl",
    "AWPO": "methods.awpo",
    "TRACE": "methods.trace",
    "SelectiveRollout": "methods.selective",
    "pack": "rollouts.pack",
}  # the others are in api


def __getattr__(name: str) -> Any:
    """Imports on first use, because torch takes seconds to import and most of this package does without it."""
    if name not in __all__:
        raise AttributeError(f"module 'turnwise' has no attribute {name!r}")
    warnings.filterwarnings("ignore", "IProgress not found")  # of tqdm, which nothing here needs in a notebook
    if name in ("credit", "loss"):
        return import_module(f"turnwise.methods.{name}")
    return getattr(import_module(f"turnwise.{_WHERE.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
