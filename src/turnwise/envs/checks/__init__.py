"""Tests of any environment: replayed experts, hostile actions, forks that take other actions, a verifier compared with cases."""

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
