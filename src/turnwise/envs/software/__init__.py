"""The software environment: the policy repairs generated repositories in which one line is wrong."""

from turnwise.envs.software.environment import SoftwareEnv
from turnwise.envs.software.experts import Slips
from turnwise.envs.software.session import SoftwareSession

__all__ = ["Slips", "SoftwareEnv", "SoftwareSession"]
