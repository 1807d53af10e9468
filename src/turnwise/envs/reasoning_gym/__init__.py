"""The environment ``env=reasoning_gym``: generated reasoning tasks of the package reasoning-gym, with the package's own
answers and scores.
"""

from turnwise.envs.reasoning_gym.environment import ReasoningGymEnv
from turnwise.envs.reasoning_gym.experts import Mistakes
from turnwise.envs.reasoning_gym.session import ReasoningSession

__all__ = ["Mistakes", "ReasoningGymEnv", "ReasoningSession"]
