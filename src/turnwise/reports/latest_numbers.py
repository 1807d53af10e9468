"""Selects the latest numbers of a run that has no result yet."""

from __future__ import annotations

from turnwise.reports.metric_labels import success_keys
from turnwise.reports.read_run import ReportedRun
from turnwise.reports.sentences import percent

NEWEST = {
    "train/reward_mean": ("mean reward, last iteration", "{:.2f}"),
    "rollout/turns": ("rollout turns", "{:,.0f}"),
    "rollout/tokens": ("rollout tokens", "{:,.0f}"),
}


def so_far(run: ReportedRun) -> list[tuple[str, str]]:
    """Returns pairs (value as text, label): the first and the latest evaluation, and the latest values of NEWEST."""
    tiles = []
    solved = {key: f"{split} tasks solved" for split, key in success_keys(run.metrics).items()}
    accepted = {key: "held-out replies accepted" for key in run.metrics if key == "eval/held_out/functional"}
    for key, name in (accepted | solved).items():
        iterations, values = run.series(key)
        tiles.append((percent(values[0]), f"{name} at iteration {iterations[0]}"))
        if len(values) > 1:
            tiles.append((percent(values[-1]), f"{name} at iteration {iterations[-1]}"))
    for key, (name, form) in NEWEST.items():
        values = run.series(key)[1]
        if len(values):
            tiles.append((form.format(values[-1]), name))
    return tiles
