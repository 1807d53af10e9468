"""API-Bank's three levels (arXiv:2304.08244): call a given API; find an API first; plan calls of several APIs."""

from turnwise.envs.apibank.environment import ApiBankEnv
from turnwise.envs.apibank.metric import call_accuracy
from turnwise.envs.dialogues import Mistakes

__all__ = ["ApiBankEnv", "Mistakes", "call_accuracy"]
