"""What any environment must stand: replayed experts, hostile actions, forks that part ways, a verifier held against cases."""

from turnwise.envs.checks.cases import Case, Cases, read_cases
from turnwise.envs.checks.hostile import check_hostile, forges
from turnwise.envs.checks.replay import Replayed, check_forks, replay, steps_per_second

__all__ = [
    "Case",
    "Cases",
    "Replayed",
    "check_forks",
    "check_hostile",
    "forges",
    "read_cases",
    "replay",
    "steps_per_second",
]
