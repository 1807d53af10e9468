"""Measures how good predictions were before training on the outcomes: rank correlation, and error by depth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import spearmanr

from turnwise.rollouts.predictors.contrast import Anchor, captured
from turnwise.rollouts.predictors.targets import Target

DEPTHS = ((0, 0), (1, 2), (3, 5), (6, 10), (11, None))  # ranges of depth (turns since the root) for the error by depth


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for a history, and its target."""

    value: float
    target: Target

    @property
    def error(self) -> float:
        return (self.value - self.target.mean) ** 2


def quality(roots: Sequence[Prediction], prefixes: Sequence[Prediction]) -> dict[str, float]:
    """Returns Spearman's rho with its p-value (TRACE Eq. 22) for roots and prefixes, and the squared error by depth.

    ``captured_*`` is the share of the contrast below the half of the histories with the greatest V(1 - V).
    ``captured_*_best`` is the share below the half that turned out to be best (Figure 2b). A ranking without
    information finds one half. Undefined values are left out: a correlation of fewer than three histories or of equal
    predictions or outcomes, and shares of contrast if there is none.
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
    """Returns p (1 - p), the variance of outcomes within a group with this success rate."""
    return success * (1 - success)


def bucket(depth: int) -> str:
    """Returns the name of the range of depths: ``0``, ``1-2``, ``3-5``, ``6-10`` or ``11+``."""
    low, high = next((low, high) for low, high in DEPTHS if high is None or depth <= high)
    return f"{low}+" if high is None else f"{low}" if low == high else f"{low}-{high}"
