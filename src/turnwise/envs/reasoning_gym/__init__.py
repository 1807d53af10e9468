"""The environment ``env=reasoning_gym``: generated reasoning tasks of the package reasoning-gym."""

from turnwise.envs.reasoning_gym.environment import ReasoningGymEnv
from turnwise.envs.reasoning_gym.experts import Mistakes
from turnwise.envs.reasoning_gym.session import ReasoningSession

__all__ = ["Mistakes", "ReasoningGymEnv", "ReasoningSession"]
