"""``env=verifiers``: environments written for the verifiers library, which their authors publish as Python packages."""

from turnwise.envs.verifiers.environment import VerifiersEnv

__all__ = ["VerifiersEnv"]
