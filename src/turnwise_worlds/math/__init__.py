"""The environment ``env=math``: the policy solves mathematical problems with a Python tool that runs in the sandbox."""

from turnwise_worlds.math.environment import Interpreter, MathEnv, MathSession, Mistakes
from turnwise_worlds.math.equality import Equality

__all__ = ["Equality", "Interpreter", "MathEnv", "MathSession", "Mistakes"]
