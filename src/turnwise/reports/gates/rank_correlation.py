"""Computes how well a signal predicts whether the rewards of a group differ: Spearman's rho, and AUROC."""

from __future__ import annotations

import numpy as np
from scipy import special


def rank_statistics(values: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Returns Spearman's rho of the values with the reward variance, and the AUROC of the values for detecting groups
    whose rewards differ: two inputs (..., n) -> (..., 2). Undefined statistics are NaN.
    """
    return placed_statistics(*places(variances, values))


def places(variances: np.ndarray, *signals: np.ndarray) -> list[np.ndarray]:
    """Returns the inputs of :func:`placed_statistics`: for each group, whether its rewards differ, and the positions of
    its variance and of each signal among the sorted distinct values (-1 for NaN). Positions save sorting in resamples.
    """
    columns = [np.unique(column, return_inverse=True)[1].reshape(column.shape) for column in (variances, *signals)]
    return [np.sqrt(variances) > 1e-6, *(np.where(np.isnan(v), -1, c) for c, v in zip(columns, (variances, *signals)))]


def placed_statistics(mixed: np.ndarray, variances: np.ndarray, *signals: np.ndarray) -> np.ndarray:
    """Returns Spearman's rho and the AUROC (:func:`rank_statistics`) of each signal in turn, from the arrays that
    :func:`places` returns. The result has the shape (..., 2 * number of signals).
    """
    of_variance = _ranks(variances)
    b = of_variance - of_variance.mean(-1, keepdims=True)
    ones = mixed.sum(-1)
    pairs = ones * (mixed.shape[-1] - ones)
    found = []
    for values in signals:
        ranks = _ranks(values)
        a = ranks - ranks.mean(-1, keepdims=True)
        with np.errstate(invalid="ignore", divide="ignore"):
            found.append((a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1)))
            found.append(((ranks * mixed).sum(-1) - ones * (ones + 1) / 2) / pairs)
    return np.stack(found, -1)


def _ranks(column: np.ndarray) -> np.ndarray:
    """Returns the ranks of the n positions of each row, (..., n). Ties get their mean rank, as in scipy's rankdata."""
    rows = column.reshape(-1, column.shape[-1])
    width = int(rows.max(initial=0)) + 1
    cells = np.maximum(rows, 0) + width * np.arange(len(rows))[:, None]
    counts = np.bincount(cells.ravel(), minlength=width * len(rows)).reshape(-1, width)
    ranks = (counts.cumsum(-1) - (counts - 1) / 2).ravel()[cells]
    ranks[(rows < 0).any(-1)] = np.nan
    return ranks.reshape(column.shape)


def p_value(values: np.ndarray, variances: np.ndarray) -> float:
    """Returns the two-sided p-value of Spearman's rho (Student's t, n - 2 degrees of freedom), as scipy's spearmanr."""
    n, rho = len(values), np.corrcoef(_ranks(values), _ranks(variances))[1, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        t = rho * np.sqrt(np.maximum((n - 2) / ((rho + 1.0) * (1.0 - rho)), 0))
    return float(2 * special.stdtr(n - 2, -abs(t)))
