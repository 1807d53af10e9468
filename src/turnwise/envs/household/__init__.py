"""``env=household``: ALFWorld's texts, actions and rules in generated rooms."""

from turnwise.envs.household.environment import HouseholdEnv
from turnwise.envs.household.experts import Mistakes
from turnwise.envs.household.session import HouseholdSession

__all__ = ["HouseholdEnv", "HouseholdSession", "Mistakes"]
