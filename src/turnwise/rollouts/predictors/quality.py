"""Measures how well a critic predicts outcomes on which it was not trained: rank correlation, contrast and error.

The contrast of a history is p (1 - p), where p is the success rate of the rollouts that continue it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from scipy.stats import spearmanr

from turnwise.rollouts.predictors.targets import Target

DEPTHS = ((0, 0), (1, 2), (3, 5), (6, 10), (11, None))  # ranges of depth (turns since the root); None: no limit


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted success of a history, and its target (the measured success rate)."""

    value: float
    target: Target

    @property
    def error(self) -> float:
        return (self.value - self.target.mean) ** 2


class Anchor(NamedTuple):
    """A state or a turn at which rollouts can branch, with its rank and its contrast."""

    rank: float  # anchors with a greater rank get rollouts first
    contrast: float  # p (1 - p), where p is the success rate of the rollouts that continue it


def quality(roots: Sequence[Prediction], prefixes: Sequence[Prediction]) -> dict[str, float]:
    """Returns metrics of prediction quality for root states and for histories below them (prefixes).

    - ``spearman_*``, ``spearman_*_p``: Spearman's rank correlation between predictions and success rates, and its
      p-value (TRACE Eq. 22).
    - ``captured_*``: the contrast of the half of the histories with the greatest V (1 - V), divided by the contrast of
      all histories. V is the predicted success. The contrast of a history is p (1 - p), where p is its measured success
      rate. A ranking without information gives 0.5.
    - ``captured_*_best``: the same fraction for the half with the greatest contrast, which is the best possible value
      (TRACE Figure 2b).
    - ``mse_depth/*``: the mean squared error of the predictions, separately for ranges of the number of turns since the
      root.

    Undefined values are left out. A correlation is undefined for fewer than three histories, and if all predictions or
    all success rates are equal. The fractions of contrast are undefined if no history has contrast.
    """
    found: dict[str, float] = {}
    for name, group in (("root", roots), ("prefix", prefixes)):
        values, means = [p.value for p in group], [p.target.mean for p in group]
        if len(group) >= 3 and len(set(values)) > 1 and len(set(means)) > 1:
            rho, p = spearmanr(values, means)
            found |= {f"spearman_{name}": float(rho), f"spearman_{name}_p": float(p)}
        shares = {
            f"captured_{name}": captured(Anchor(spread(p.value), spread(p.target.mean)) for p in group),
            f"captured_{name}_best": captured(Anchor(spread(p.target.mean), spread(p.target.mean)) for p in group),
        }
        found |= {key: share for key, share in shares.items() if share is not None}
    errors: dict[str, list[float]] = defaultdict(list)
    for prediction in (*roots, *prefixes):
        errors[bucket(prediction.target.depth)].append(prediction.error)
    return found | {f"mse_depth/{name}": sum(group) / len(group) for name, group in errors.items()}


def spread(success: float) -> float:
    """Returns p (1 - p) for a success rate p, which is the variance of a success (0 or 1) with this probability."""
    return success * (1 - success)


def bucket(depth: int) -> str:
    """Returns the name of the range in which a depth lies: ``0``, ``1-2``, ``3-5``, ``6-10`` or ``11+``."""
    low, high = next((low, high) for low, high in DEPTHS if high is None or depth <= high)
    return f"{low}+" if high is None else f"{low}" if low == high else f"{low}-{high}"


def captured(anchors: Iterable[Anchor], share: float = 0.5) -> float | None:
    """Returns the contrast of the top-ranked anchors divided by the contrast of all anchors (TRACE Figure 2b).

    The top-ranked anchors are the fraction ``share`` of all anchors that have the greatest ranks. All anchors count
    equally, however many rollouts they really got. If only some of the anchors with equal ranks fit into this fraction,
    each of them counts partly. A ranking that ranks all anchors equally therefore gives ``share``. The result is None
    if no anchor has contrast.
    """
    ordered = sorted(anchors, key=lambda anchor: -anchor.rank)
    total = sum(anchor.contrast for anchor in ordered)
    if not total:
        return None
    left, found = share * len(ordered), 0.0
    for _, group in groupby(ordered, key=lambda anchor: anchor.rank):
        alike = list(group)
        served = min(len(alike), left)
        found += sum(anchor.contrast for anchor in alike) * served / len(alike)
        left -= served
    return found / total
