"""The environment ``env=math``: the policy solves mathematical problems with a Python tool that runs in the sandbox."""

from turnwise.envs.math.environment import MathEnv
from turnwise.envs.math.equality import Equality
from turnwise.envs.math.experts import Mistakes
from turnwise.envs.math.interpreter import Interpreter
from turnwise.envs.math.session import MathSession

__all__ = ["Equality", "Interpreter", "MathEnv", "MathSession", "Mistakes"]
