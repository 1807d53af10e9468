"""The environment ``env=bfcl``: the benchmark BFCL v4 multi-turn.

The environment uses the tasks and the simulated APIs of the package bfcl-eval. It can also generate short tasks for the
same APIs.
"""

from turnwise.envs.bfcl.environment import BfclEnv
from turnwise.envs.dialogues import Mistakes

__all__ = ["BfclEnv", "Mistakes"]
