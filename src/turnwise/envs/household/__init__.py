"""``env=household``: ALFWorld's texts, actions and rules in generated rooms."""

from turnwise.envs.household.environment import HouseholdEnv, Mistakes
from turnwise.envs.household.state import HouseholdSession

__all__ = ["HouseholdEnv", "HouseholdSession", "Mistakes"]
