"""``env=apibank``: the benchmark API-Bank (arXiv:2304.08244)."""

from turnwise.envs.apibank.environment import ApiBankEnv, call_accuracy
from turnwise.envs.dialogues import Mistakes

__all__ = ["ApiBankEnv", "Mistakes", "call_accuracy"]
