"""The environment ``env=software``: the policy repairs generated code repositories in which one line is wrong."""

from turnwise.envs.software.environment import SoftwareEnv
from turnwise.envs.software.experts import Slips
from turnwise.envs.software.session import SoftwareSession

__all__ = ["Slips", "SoftwareEnv", "SoftwareSession"]
