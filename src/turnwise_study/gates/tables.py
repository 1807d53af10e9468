"""Computes the offline tables of Selective Rollout (arXiv:2605.05802) from recorded groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from turnwise.methods.selective import DISTANCE, SIGNALS, TERMINATION
from turnwise_study.gates.groups import (
    KNOWN,
    LABELS,
    Buffer,
    Row,
    counts,
    intervals,
    placed_statistics,
    places,
    rank_statistics,
)

THRESHOLDS = (0.05, 0.08, 0.10, 0.12, 0.14, 0.18)
# Smallest number of groups of a class (such as groups with equal rewards) for which an interval is given. With fewer
# groups, resampling shows no spread. The paper reports numbers even for a class with a single group.
LEAST = 3


def thresholds_table(buffer: Buffer, k: int, thresholds: Sequence[float], resamples: int, seed: int) -> dict[str, Row]:
    """T1 (Table 1 of the paper): for each threshold, the groups that a gate cuts at step ``k``, and the saving in
    percent, safe = TP (T - K) / (N T) and raw = (TP + FP) (T - K) / (N T), with horizon T and N groups.
    """
    values = buffer.values(k, DISTANCE)
    return {
        f"{t:.2f}" if round(t, 2) == t else f"{t:g}": _threshold_row(buffer, values < t, k, resamples, seed)
        for t in thresholds
    }


def _threshold_row(buffer: Buffer, cut: np.ndarray, k: int, resamples: int, seed: int) -> Row:
    uniform = buffer.uniform
    share = 100 * (buffer.horizon - k) / buffer.horizon
    columns = [(cut & uniform) * share, cut * share]
    safe, raw = intervals(lambda a, b: np.stack([a.mean(-1), b.mean(-1)], -1), columns, resamples, seed)
    return counts(cut, uniform) | {
        "safe": float(columns[0].mean()),
        "raw": float(columns[1].mean()),
        "safe_ci95": safe,
        "raw_ci95": raw,
    }


def regime_row(buffer: Buffer, k: int, threshold: float, resamples: int, seed: int) -> Row:
    """How much a gate can save if it decides at step ``k``: the percentages of groups whose rewards are all equal
    (``zero_variance_pct``), of groups with d_K below the threshold, as the paper counts them (``below_pct``), of those
    in which a rollout still runs after step ``k`` (``live_pct``), and the turns after step ``k`` in groups of equal
    rewards, in percent of all turns (``oracle_pct``).
    """
    below, tails, turns = buffer.values(k, DISTANCE) < threshold, buffer.tails(k), buffer.turns
    columns = [buffer.uniform, below, below & (tails > 0), tails * buffer.uniform, turns]
    names = ("zero_variance_pct", "below_pct", "live_pct", "oracle_pct")
    bounds = intervals(_regime, columns, resamples, seed)
    return dict(zip(names, _regime(*columns).tolist(), strict=True)) | {
        f"{name}_ci95": interval for name, interval in zip(names, bounds, strict=True)
    }


def _regime(
    uniform: np.ndarray, below: np.ndarray, live: np.ndarray, after: np.ndarray, turns: np.ndarray
) -> np.ndarray:
    shares = [part.mean(-1) for part in (uniform, below, live)]
    return 100 * np.stack([*shares, after.sum(-1) / turns.sum(-1)], -1)


def signals_table(buffer: Buffer, resamples: int, seed: int) -> dict[str, dict[str, Row]]:
    """T7 (Table 7 of the paper, and the data of its Fig. 2): K -> signal -> row with rho, its p-value and AUROC.
    ``over_tau`` is rho of the signal minus rho of tau_K, with an interval from resampling both together.
    """
    return {
        str(k): rank_rows(
            {name: buffer.values(k, name) for name in SIGNALS}, buffer.variances, resamples, seed,
            ("over_tau", "rho", TERMINATION),
        )
        for k in buffer.steps
    }  # fmt: skip


def rank_rows(
    signals: Mapping[str, np.ndarray], variances: np.ndarray, resamples: int, seed: int, over: tuple[str, str, str]
) -> dict[str, Row]:
    """For each signal, a row with the statistics of :func:`rank_statistics` and the two-sided p-value of rho. All
    signals use the same resamples. ``over`` is (key, statistic, signal): under the key, each row gets the statistic of
    its own signal minus that of ``signal``.
    """
    from scipy import stats  # slow to import

    names, (beside, which, other) = list(signals), over
    which_of = ("rho", "auroc").index(which)

    def statistic(*columns: np.ndarray) -> np.ndarray:
        found = placed_statistics(*columns)
        compared = found[..., which_of::2]
        return np.concatenate([found, compared - compared[..., [names.index(other)]]], -1)

    columns = places(variances, *signals.values())
    values = [defined(value) for value in statistic(*columns)]
    bounds = intervals(statistic, columns, resamples, seed)
    rows: dict[str, Row] = {}
    for i, name in enumerate(names):
        at = {"rho": 2 * i, "auroc": 2 * i + 1, beside: 2 * len(names) + i}
        p = None if values[2 * i] is None else defined(stats.spearmanr(columns[2 + i], columns[1]).pvalue)
        rows[name] = {"rho": values[2 * i], "p": p} | {key: values[place] for key, place in at.items()}
        rows[name] |= {f"{key}_ci95": bounds[place] for key, place in at.items()}
    return rows


def peak_row(buffer: Buffer, signal: str = DISTANCE) -> Row:
    """The data of Fig. 5 of the paper: the largest |rho| of a signal over all steps, and its step ``k``. It is above 0
    even for noise, so a bootstrap interval would never contain 0 and is not given.
    """
    columns = {k: buffer.values(k, signal) for k in buffer.steps}
    rhos = {k: defined(rank_statistics(column, buffer.variances)[0]) for k, column in columns.items()}
    found = {k: abs(rho) for k, rho in rhos.items() if rho is not None}
    k = max(found, key=found.__getitem__, default=None)
    return {"rho": None if k is None else found[k], "k": k}


def types_table(buffer: Buffer, k: int, resamples: int, seed: int) -> dict[str, Row]:
    """T8 (Table 8 of the paper): for each kind of task, the AUROC of d_K at step ``k``, and that of the pair (signal,
    step) with the largest |rho| for this kind; in the row ``median``, medians over kinds.

    The paper's caption says that the pair has the largest AUROC, but its numbers belong to the pair with the largest
    |rho|. The AUROC of the pair has no interval, because the pair is chosen among many.
    """
    kinds = sorted({group.kind for group in buffer.groups if group.kind is not None})
    table: dict[str, Row] = {}
    for kind in kinds:
        part = buffer.only([i for i, group in enumerate(buffer.groups) if group.kind == kind])
        found = [
            (defined(rho), defined(auroc), name, step)
            for step in part.steps
            for name in SIGNALS
            for rho, auroc in [rank_statistics(part.values(step, name), part.variances)]
        ]
        ranked = [row for row in found if row[0] is not None and row[1] is not None]
        best = max(ranked, key=lambda row: abs(row[0]), default=None)  # type: ignore[arg-type]
        smaller = min(int(part.uniform.sum()), int((~part.uniform).sum()))
        columns = places(part.variances, part.values(k, DISTANCE))
        of_auroc = intervals(placed_statistics, columns, resamples, seed)[1]
        table[kind] = {
            "n": len(part.groups),
            "n_zv": int(part.uniform.sum()),
            "auroc": next(row[1] for row in found if row[2:] == (DISTANCE, k)),
            "auroc_ci95": of_auroc if smaller >= LEAST else None,
            "best": best and {"signal": best[2], "k": best[3], "rho": best[0], "auroc": best[1]},
        }
    if table:
        table["median"] = {
            "auroc": _median([row["auroc"] for row in table.values()]),
            "best_auroc": _median([row["best"] and row["best"]["auroc"] for row in table.values()]),
        }
    return table


def labels_table(buffer: Buffer, k: int) -> dict[str, Row]:
    """Returns T10 (Table 10 of the paper): label -> medians at step ``k`` of d_K (the mean edit distance between the
    first K actions of the rollouts) and tau_K (the fraction of rollouts that have ended). A label says how a group
    ended.
    """
    table: dict[str, Row] = {}
    for label in LABELS:
        part = buffer.only([i for i, group in enumerate(buffer.groups) if group.label == label])
        columns = [part.values(k, name) for name in (DISTANCE, TERMINATION)]
        found = [median_interval(column) for column in columns]
        table[label] = {
            "n": len(part.groups),
            "k": k,
            "median_d": _median(columns[0]),
            "median_tau": _median(columns[1]),
            "median_d_ci95": found[0],
            "median_tau_ci95": found[1],
        }
    return table


def median_interval(values: np.ndarray) -> list[float] | None:
    """Returns the exact 95 % interval of the median between two order statistics, by the sign test. It has no width if
    nearly all values near the median are equal, as shares of eight rollouts often are. None for fewer than six values.
    """
    from scipy.stats import binom

    rank = int(binom.ppf(0.025, len(values), 0.5)) if len(values) else 0
    ordered = np.sort(values)
    return [float(ordered[rank - 1]), float(ordered[-rank])] if rank >= 1 else None


def defined(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _median(values: Sequence[float | None] | np.ndarray) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


COLUMNS = ("saved_pct", "l2_pct", "below_oracle", "over_random")


def arms_table(buffer: Buffer, k: int, threshold: float, ended: float, resamples: int, seed: int) -> dict[str, Row]:
    """T12 (Table 12 of the paper): for each rule at step ``k``, the cut groups, the saved turns, and the remaining norm
    of the advantages.

    ``divergence`` (the gate) cuts a group if d_K is below ``threshold``, ``termination`` if at least the fraction
    ``ended`` of its rollouts has ended, ``either`` if one of the two holds. ``dapo`` filters groups after sampling: it
    saves nothing and drops only groups whose advantages are 0. ``random`` cuts as many groups as ``either``, in
    expectation; ``oracle`` cuts all groups whose rewards are equal.

    ``saved_pct`` has the turns that the cut rollouts would still have taken, in percent of all turns, ``l2_pct`` the L2
    norm of the advantages of the groups that are not cut, in percent of the norm over all groups. ``below_oracle`` and
    ``over_random`` are differences of two rules in these, with intervals from resampling both together.
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
    found = _compared(*columns).tolist()
    bounds = intervals(_compared, columns, resamples, seed)
    rows: dict[str, Row] = {arm: {} for arm in arms}
    places = [(arm, name) for arm in arms for name in (COLUMNS[:2] if arm == "random" else COLUMNS)]
    for (arm, name), value, bound in zip(places, found, bounds, strict=True):
        rows[arm] |= {name: value, f"{name}_ci95": bound}
    return rows


def _compared(*columns: np.ndarray) -> np.ndarray:
    """The values of ``COLUMNS`` for all rules, ``random`` last: inputs (..., n) -> (..., m). One call for all rules
    computes a resample and its row ``random`` only once.
    """
    *cuts, tails, turns, energies, uniform, either = columns
    at_random, most = _random(tails, turns, uniform, either), _saved_share(uniform, tails, turns)
    found = []
    for cut in cuts:
        saved, kept = _saved_share(cut, tails, turns), kept_norm(cut, energies)
        found += [saved, kept, most - saved, kept - at_random[..., 1]]
    return np.concatenate([np.stack(found, -1), at_random], -1)


def _random(tails: np.ndarray, turns: np.ndarray, uniform: np.ndarray, either: np.ndarray) -> np.ndarray:
    """The expected ``saved_pct`` and ``l2_pct`` of cutting as many random groups as ``either`` cuts, (..., n) -> (...,
    2). Of m groups with different rewards, which have the same norm unless a rollout was lost, a hypergeometric number
    H is kept, and the kept fraction of the norm is sqrt(H / m).
    """
    from scipy import stats

    n = tails.shape[-1]
    fired, useful = either.sum(-1)[..., None], (~uniform).sum(-1)[..., None]
    kept = np.arange(n + 1)
    chances = stats.hypergeom.pmf(kept, n, useful, n - fired)
    norm = np.where(useful > 0, np.sqrt(kept / np.maximum(useful, 1)), 1.0)
    saved = 100 * either.mean(-1) * tails.sum(-1) / turns.sum(-1)
    return np.stack([saved, 100 * (chances * norm).sum(-1)], -1)


def _saved_share(cut: np.ndarray, tails: np.ndarray, turns: np.ndarray) -> np.ndarray:
    return np.asarray(100 * (tails * cut).sum(-1) / turns.sum(-1))


def kept_norm(cut: np.ndarray, energies: np.ndarray) -> np.ndarray:
    """100 ||A_kept|| / ||A_all|| of the advantages' L2 norm; 100 if all advantages are 0."""
    total = energies.sum(-1)
    return np.asarray(
        100 * np.sqrt(np.where(total > 0, (energies * ~cut).sum(-1) / np.where(total > 0, total, 1), 1.0))
    )


Looks = dict[str, dict[str, dict[str, Row]]]


def looks_table(buffer: Buffer, resamples: int, seed: int) -> Looks:
    """K -> ``all`` or ``late`` (the second half of the iterations) -> signal that a running gate measured -> row as in
    Table 7 of the paper, over the groups in which a rollout still ran after turn K. ``over_d`` is the AUROC of the
    signal minus that of d_K. Empty if the gates computed no values other than the signals of the paper.
    """
    table: Looks = {}
    last = max(group.iteration for group in buffer.groups)
    for k in buffer.steps:
        looked = [i for i, group in enumerate(buffer.groups) if k in group.looks]
        names = sorted({name for i in looked for name in buffer.groups[i].looks[k]} - set(SIGNALS))
        if names not in ([], [KNOWN]):
            late = [i for i in looked if 2 * buffer.groups[i].iteration > last]
            table[str(k)] = {
                when: _look_rows(buffer.only(part), k, names, resamples, seed)
                for when, part in (("all", looked), ("late", late))
                if len(part) > 1
            }
    return table


def _look_rows(buffer: Buffer, k: int, names: list[str], resamples: int, seed: int) -> dict[str, Row]:
    signals = {name: np.array([group.looks[k].get(name, np.nan) for group in buffer.groups]) for name in names}
    signals |= {name: buffer.values(k, name) for name in SIGNALS}
    rows = rank_rows(signals, buffer.variances, resamples, seed, ("over_d", "auroc", DISTANCE))
    count = {"groups": len(buffer.groups), "zero_variance": int(buffer.uniform.sum())}
    return {name: row | count for name, row in rows.items()}
