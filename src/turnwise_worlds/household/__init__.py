"""``env=household``: ALFWorld's texts, actions and rules in generated rooms."""

from turnwise_worlds.household.environment import HouseholdEnv, Mistakes
from turnwise_worlds.household.state import HouseholdSession

__all__ = ["HouseholdEnv", "HouseholdSession", "Mistakes"]
