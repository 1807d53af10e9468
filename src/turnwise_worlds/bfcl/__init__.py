"""``env=bfcl``: the benchmark BFCL v4 multi-turn, and short generated tasks for its simulated APIs."""

from turnwise_worlds.bfcl.environment import BfclEnv
from turnwise_worlds.tool_dialogues import Mistakes

__all__ = ["BfclEnv", "Mistakes"]
