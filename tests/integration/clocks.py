"""Metrics that two starts of one run do not share."""

from __future__ import annotations

# `engine/` is counted by each start for itself
CLOCKS = ("time", "seconds/", "cpu/", "rollout/tokens_per_s", "predictor/share", "engine/", "judge/wait")
