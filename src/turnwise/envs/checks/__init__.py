"""Checks that can be run on any environment.

The checks repeat the experts' actions in fresh episodes, play hostile actions, test whether a fork and its parent
session are independent, and compare the verifier's verdicts with hand-written cases.
"""

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
