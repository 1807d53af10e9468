"""Caches the bootstrap intervals of claims in a file. Without the cache, their computation takes a third of the time of
a report on all sweeps.
"""

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
    """Computes the same as ``turnwise.evaluation.stats.paired_mean_difference``, and caches the results in a file.

    Args:
        path: the cache file. If it is None, the results are not written to a file.
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
        """Writes the results to the cache file. If the file cannot be written, the error is ignored."""
        self._kept.write()


def _bytes(scores: Scores) -> list[bytes]:
    """Returns the scores as bytes, for the key of the cache. Two inputs give different bytes if a score, or the order
    of suites or tasks, differs.
    """
    found = []
    for suite, tasks in scores.items():
        counts = [len(attempts) for attempts in tasks.values()]
        values = np.fromiter(chain.from_iterable(tasks.values()), float)
        found += [repr((suite, list(tasks), counts)).encode(), values.tobytes()]
    return found
