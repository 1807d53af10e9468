"""``env=verifiers``: environments that were written for the verifiers library. Each is an installed Python package."""

from turnwise.envs.verifiers.environment import VerifiersEnv

__all__ = ["VerifiersEnv"]
