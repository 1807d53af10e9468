"""BFCL v4 multi-turn: the real tasks and simulated APIs of bfcl-eval, and short tasks generated over the same APIs."""

from turnwise.envs.bfcl.environment import BfclEnv
from turnwise.envs.dialogues import Mistakes

__all__ = ["BfclEnv", "Mistakes"]
