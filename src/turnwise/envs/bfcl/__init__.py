"""``env=bfcl``: the benchmark BFCL v4 multi-turn, and short generated tasks for its simulated APIs."""

from turnwise.envs.bfcl.environment import BfclEnv
from turnwise.envs.dialogues import Mistakes

__all__ = ["BfclEnv", "Mistakes"]
