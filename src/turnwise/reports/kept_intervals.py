"""Caches the bootstrap intervals of claims in a file, because a report on all sweeps needs many of them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import numpy as np

from turnwise.evaluation import stats
from turnwise.evaluation.stats import Estimate, paired_mean_difference
from turnwise.files import KeptValues, checksum

Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""Suite -> task -> score of each attempt."""


class KeptIntervals:
    """Computes the intervals of ``turnwise.evaluation.stats.paired_mean_difference``, and caches them in a file.

    Args:
        path: the cache file. If it is None, no file is written.
    """

    def __init__(self, path: Path | None) -> None:
        self._kept = KeptValues(path, checksum([Path(stats.__file__)], sys.version, version("numpy")))

    def __call__(self, before: Scores, after: Scores) -> Estimate:
        key = hashlib.sha256(b"".join([*_bytes(before), *_bytes(after)])).hexdigest()
        if key not in self._kept:
            found = paired_mean_difference(before, after)
            self._kept[key] = [found.mean, found.low, found.high, found.n]
        return Estimate(*self._kept[key])

    def keep(self) -> None:
        """Writes the intervals to the cache file. If the file cannot be written, the error is ignored."""
        self._kept.write()


def _bytes(scores: Scores) -> list[bytes]:
    """Returns the key of the cache as bytes, which depend on the scores and on the order of suites and tasks."""
    found = []
    for suite, tasks in scores.items():
        counts = [len(attempts) for attempts in tasks.values()]
        values = np.fromiter(chain.from_iterable(tasks.values()), float)
        found += [repr((suite, list(tasks), counts)).encode(), values.tobytes()]
    return found
