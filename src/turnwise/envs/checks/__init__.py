"""Checks for any environment: repeated expert episodes, hostile actions, forks, and hand-written cases."""

from turnwise.envs.checks.cases import Case, Cases, read_cases
from turnwise.envs.checks.expert_replay import Replayed, check_forks, replay, steps_per_second
from turnwise.envs.checks.hostile import check_hostile, forges

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
