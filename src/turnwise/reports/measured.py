"""What a run's folder says of a metric: one number, and, where it holds them, the outcomes of single tasks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from turnwise.errors import InputError
from turnwise.reports.compare import read_metric
from turnwise.reports.keep import each_line
from turnwise.reports.result import Result

Outcomes = Mapping[str, Mapping[str, list[float]]]
"""Suite -> task -> the scores of every attempt, shares; the held-out episodes are one suite without a name."""

_EPISODES = re.compile(r"in_domain\.(?:(greedy|sampled)\.)?(?:by_split\.(\w+)\.|by_subset\.([\w-]+)\.)?(after|delta)")
_ANSWERS = re.compile(r"ood\.(?:(mean_change)|after(?:\.(\w+))?)")


@dataclass(frozen=True)
class Measured:
    """A finished run, or what was kept of one (:mod:`turnwise.reports.keep`).

    A metric is a path into ``result.json`` (``in_domain.after``), a key of ``metrics.jsonl`` as its mean over the training
    rows (``train/reward_std``; ``late train/...``: over the later half; ``spread train/...``: its standard deviation;
    ``last rollout/...``: of the last row; ``sum train/...``: over all), or one such divided by another (``in_domain.delta /
    rollout_turns``).
    """

    folder: Path
    result: Result

    def value(self, metric: str) -> float | None:
        """The number; None where the run has none.

        Raises:
            InputError: no run could have such a number.
        """
        first, sign, second = metric.partition(" / ")
        if sign:
            top, bottom = self.value(first), self.value(second)
            return None if top is None or not bottom else top / bottom
        how, _, key = metric.rpartition(" ")
        if how not in ("", "late", "spread", "last", "sum"):
            raise InputError(f"metric {metric!r}: {how!r} is none of late, spread, last, sum")
        if "/" not in key:
            return read_metric(self.result, key)
        found = [row[key] for row in self.training if row.get(key) is not None]
        if not found:
            return None
        if how == "spread":
            return pstdev(found)
        if how == "last":
            return found[-1]
        if how == "sum":
            return sum(found)
        return fmean(found[len(found) // 2 :] if how == "late" else found)

    def outcomes(self, metric: str, when: str = "after") -> Outcomes | None:
        """The single outcomes behind ``metric``, ``when`` is ``base`` or ``after``; None where it has none, or they are lost."""
        episodes, answers = _EPISODES.fullmatch(metric), _ANSWERS.fullmatch(metric)
        found: dict[str, dict[str, list[float]]] = {}
        for row in self._evaluation(when) if episodes or answers else ():
            if episodes and "success" in row:
                mode, split, subset, _ = episodes.groups()
                mode = mode or getattr(self.result.in_domain, "decoding", None) or "sampled"
                if row["mode"] == mode and split in (None, row["split"]) and subset in (None, row.get("subset")):
                    suite = found.setdefault("", {})
                    suite.setdefault(f"{row['split']}/{row['task']}", []).append(float(row["success"]))
            elif answers and "score" in row and answers[2] in (None, row["suite"]):
                found.setdefault(row["suite"], {}).setdefault(str(row["item"]), []).append(float(row["score"]))
        return found or None

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Rows of ``metrics.jsonl``; empty where there is no such file."""
        return list(_lines(self.folder / "metrics.jsonl"))

    @cached_property
    def training(self) -> list[dict[str, Any]]:
        """Those of training."""
        return [row for row in self.rows if row.get("phase") == "train"]

    def _evaluation(self, when: str) -> Iterator[dict[str, Any]]:
        return _lines(self.folder / "evaluation" / f"{when}.jsonl")


def is_change(metric: str) -> bool:
    """Whether a metric is a change since the base policy, so that single outcomes can be held against the run's own base."""
    return metric.endswith((".delta", ".mean_change"))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(each_line(path), 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}:{number}: not JSON ({error}); start the run again to rewrite it") from error
        if isinstance(row, dict):
            yield row
