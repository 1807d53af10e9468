"""The software environment: generated repositories with a seeded fault."""

from turnwise.envs.software.environment import SoftwareEnv
from turnwise.envs.software.experts import Slips
from turnwise.envs.software.session import SoftwareSession

__all__ = ["Slips", "SoftwareEnv", "SoftwareSession"]
