"""BFCL v4 multi-turn: the tasks and simulated APIs of the package bfcl-eval, and short generated tasks on the same
APIs.
"""

from turnwise.envs.bfcl.environment import BfclEnv
from turnwise.envs.dialogues import Mistakes

__all__ = ["BfclEnv", "Mistakes"]
