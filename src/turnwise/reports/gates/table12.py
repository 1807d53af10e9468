"""Compares the gate with other rules that cut groups (stop them early), as in Table 12 of Selective Rollout."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.algo.gates.gate import DISTANCE, TERMINATION
from turnwise.reports.gates.cut_counts import Row, counts
from turnwise.reports.gates.recorded_groups import Buffer
from turnwise.reports.gates.resample import intervals

COLUMNS = ("saved_pct", "l2_pct", "below_oracle", "over_random")


def arms_table(buffer: Buffer, k: int, threshold: float, ended: float, resamples: int, seed: int) -> dict[str, Row]:
    """Returns T12 (Table 12 of the paper): for each rule at step ``k``, the cut groups, the saved turns, and the
    remaining norm of the advantages.

    - ``divergence`` (the gate) cuts a group if d_K, the mean edit distance between the first K actions of its rollouts,
      is below ``threshold``.
    - ``termination`` cuts a group if at least the fraction ``ended`` of its rollouts has ended.
    - ``either`` cuts a group if one of these two conditions holds.
    - ``dapo`` filters groups after sampling. It saves nothing and drops only groups whose advantages are 0.
    - ``random`` cuts as many randomly chosen groups as ``either``; its row holds the expected values.
    - ``oracle`` cuts all groups whose rewards are equal.

    ``saved_pct`` is the number of turns that the cut rollouts would still have taken, in percent of all turns.
    ``l2_pct`` is the L2 norm of the advantages of the groups that are not cut, in percent of the norm over all groups.
    ``below_oracle`` is ``saved_pct`` of the oracle minus that of the rule, and ``over_random`` is ``l2_pct`` of the
    rule minus that of ``random``. The intervals of both come from resampling the two rules together.
    """
    distance, tau = buffer.values(k, DISTANCE), buffer.values(k, TERMINATION)
    none = np.zeros(len(buffer.groups), dtype=bool)
    either = (distance < threshold) | (tau >= ended)
    cuts = {
        "no_gate": none,
        "oracle": buffer.uniform,
        "dapo": none,
        "divergence": distance < threshold,
        "termination": tau >= ended,
        "either": either,
        "divergence+dapo": distance < threshold,
    }
    columns = [*cuts.values(), buffer.tails(k), buffer.turns, buffer.energies, buffer.uniform, either]
    measured = _measured(columns, [*cuts, "random"], resamples, seed)
    table = {name: counts(cut, buffer.uniform) | measured[name] for name, cut in cuts.items()}
    n, fired, share = len(buffer.groups), int(either.sum()), float(buffer.uniform.mean())
    table["random"] = {
        "cut": fired,
        "tp": fired * share,
        "fp": fired * (1 - share),
        "precision": share if fired else None,
        "recall": fired / n if buffer.uniform.any() else None,
        **measured["random"],
    }
    return table


def _measured(columns: Sequence[np.ndarray], arms: Sequence[str], resamples: int, seed: int) -> dict[str, Row]:
    """Returns rule -> values of ``COLUMNS`` with intervals; for the rule ``random`` only the first two columns."""
    found = _compared(*columns).tolist()
    bounds = intervals(_compared, columns, resamples, seed)
    rows: dict[str, Row] = {arm: {} for arm in arms}
    places = [(arm, name) for arm in arms for name in (COLUMNS[:2] if arm == "random" else COLUMNS)]
    for (arm, name), value, bound in zip(places, found, bounds, strict=True):
        rows[arm] |= {name: value, f"{name}_ci95": bound}
    return rows


def _compared(*columns: np.ndarray) -> np.ndarray:
    """Returns the values of ``COLUMNS`` for all rules, with the rule ``random`` last: inputs (..., n) -> (..., m). One
    call for all rules saves time, because a resample and its row ``random`` are computed only once.
    """
    *cuts, tails, turns, energies, uniform, either = columns
    at_random, most = _random(tails, turns, uniform, either), _saved(uniform, tails, turns)
    found = []
    for cut in cuts:
        saved, kept = _saved(cut, tails, turns), kept_norm(cut, energies)
        found += [saved, kept, most - saved, kept - at_random[..., 1]]
    return np.concatenate([np.stack(found, -1), at_random], -1)


def _random(tails: np.ndarray, turns: np.ndarray, uniform: np.ndarray, either: np.ndarray) -> np.ndarray:
    """Returns the expected ``saved_pct`` and ``l2_pct`` of cutting as many random groups as ``either`` cuts, (..., n)
    -> (..., 2).

    All groups with different rewards are assumed to have the same norm, which is exact unless a rollout was lost. Of m
    groups with different rewards, a hypergeometric number H is kept, and the kept fraction of the norm is sqrt(H / m).
    """
    from scipy import stats

    n = tails.shape[-1]
    fired, useful = either.sum(-1)[..., None], (~uniform).sum(-1)[..., None]
    kept = np.arange(n + 1)
    chances = stats.hypergeom.pmf(kept, n, useful, n - fired)
    norm = np.where(useful > 0, np.sqrt(kept / np.maximum(useful, 1)), 1.0)
    saved = 100 * either.mean(-1) * tails.sum(-1) / turns.sum(-1)
    return np.stack([saved, 100 * (chances * norm).sum(-1)], -1)


def _saved(cut: np.ndarray, tails: np.ndarray, turns: np.ndarray) -> np.ndarray:
    return np.asarray(100 * (tails * cut).sum(-1) / turns.sum(-1))


def kept_norm(cut: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """Returns 100 ||A_kept|| / ||A_all||, the L2 norm of the advantages in the groups that are not cut, in percent of
    the norm over all groups. The result is 100 if all advantages are 0.
    """
    total = energies.sum(-1)
    return np.asarray(
        100 * np.sqrt(np.where(total > 0, (energies * ~cut).sum(-1) / np.where(total > 0, total, 1), 1.0))
    )
