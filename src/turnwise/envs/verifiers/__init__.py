"""``env=verifiers``: installed environments that were written for the verifiers library."""

from turnwise.envs.verifiers.environment import VerifiersEnv

__all__ = ["VerifiersEnv"]
