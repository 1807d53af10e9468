"""``env=apibank``: the benchmark API-Bank (arXiv:2304.08244)."""

from turnwise_worlds.apibank.environment import ApiBankEnv
from turnwise_worlds.tool_dialogues import Mistakes

__all__ = ["ApiBankEnv", "Mistakes"]
