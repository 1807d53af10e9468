"""The benchmark BFCL v4 multi-turn as an environment.

It uses the tasks and the simulated APIs of the package bfcl-eval. Short tasks for the same APIs can also be generated.
"""

from turnwise.envs.bfcl.environment import BfclEnv
from turnwise.envs.dialogues import Mistakes

__all__ = ["BfclEnv", "Mistakes"]
