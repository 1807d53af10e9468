"""The environment ``env=apibank``: the benchmark API-Bank (arXiv:2304.08244), which has three levels of difficulty.

At level 1, the policy calls a given API. At level 2, it has to find the API first. At level 3, it plans calls of
several APIs.
"""

from turnwise.envs.apibank.environment import ApiBankEnv
from turnwise.envs.apibank.metric import call_accuracy
from turnwise.envs.dialogues import Mistakes

__all__ = ["ApiBankEnv", "Mistakes", "call_accuracy"]
