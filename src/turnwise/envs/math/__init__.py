"""The environment ``env=math``: the policy solves mathematical problems with a Python tool that runs in the sandbox."""

from turnwise.envs.math.environment import MathEnv, MathSession, Mistakes
from turnwise.envs.math.equality import Equality
from turnwise.envs.math.interpreter import Interpreter

__all__ = ["Equality", "Interpreter", "MathEnv", "MathSession", "Mistakes"]
