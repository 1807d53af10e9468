"""Computes the offline tables of Selective Rollout (arXiv:2605.05802) from recorded groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnwise.methods.selective import DISTANCE, SIGNALS, TERMINATION
from turnwise_study.gates.groups import KNOWN, LABELS, Buffer
from turnwise_study.gates.statistics import (
    Row,
    bootstrapped,
    cut_counts,
    intervals,
    median_row,
    percent_of,
    placed_statistics,
    rank_places,
    rank_rows,
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
    values, uniform, share = buffer.values(k, DISTANCE), buffer.uniform, 100 * (buffer.horizon - k) / buffer.horizon

    def row(cut: np.ndarray) -> Row:
        columns = [(cut & uniform) * share, cut * share]
        names = [("", "safe"), ("", "raw")]
        means = bootstrapped(lambda a, b: np.stack([a.mean(-1), b.mean(-1)], -1), columns, names, resamples, seed)
        return cut_counts(cut, uniform) | means[""]

    return {f"{t:.2f}" if round(t, 2) == t else f"{t:g}": row(values < t) for t in thresholds}


def regime_row(buffer: Buffer, k: int, threshold: float, resamples: int, seed: int) -> Row:
    """How much a gate can save if it decides at step ``k``: the percentages of groups whose rewards are all equal
    (``zero_variance_pct``), of groups with d_K below the threshold, as the paper counts them (``below_pct``), of those
    in which a rollout still runs after step ``k`` (``live_pct``), and the turns after step ``k`` in groups of equal
    rewards, in percent of all turns (``oracle_pct``).
    """

    def regime(*columns: np.ndarray) -> np.ndarray:
        *flags, after, turns = columns
        return 100 * np.stack([*(flag.mean(-1) for flag in flags), after.sum(-1) / turns.sum(-1)], -1)

    below, tails = buffer.values(k, DISTANCE) < threshold, buffer.tails(k)
    columns = [buffer.uniform, below, below & (tails > 0), tails * buffer.uniform, buffer.turns]
    names = [("", name) for name in ("zero_variance_pct", "below_pct", "live_pct", "oracle_pct")]
    return bootstrapped(regime, columns, names, resamples, seed)[""]


def signals_table(buffer: Buffer, resamples: int, seed: int) -> dict[str, dict[str, Row]]:
    """T7 (Table 7 of the paper, and the data of its Fig. 2): K -> signal -> row with rho, its p-value and AUROC.
    ``over_tau`` is rho of the signal minus rho of tau_K, with an interval from resampling both together.
    """
    over = ("over_tau", "rho", TERMINATION)
    return {
        str(k): rank_rows({name: buffer.values(k, name) for name in SIGNALS}, buffer.variances, resamples, seed, over)
        for k in buffer.steps
    }


def peak_row(buffer: Buffer, signal: str = DISTANCE) -> Row:
    """The peak of the curve of Fig. 5 of the paper: the largest |rho| of a signal over all steps, and its step ``k``. It
    is above 0 even for noise, so a bootstrap interval would never contain 0 and is not given.
    """
    rhos = {k: rank_statistics(buffer.values(k, signal), buffer.variances)[0] for k in buffer.steps}
    sizes = {k: abs(rho) for k, rho in rhos.items() if rho is not None}
    k = max(sizes, key=sizes.__getitem__, default=None)
    return {"rho": None if k is None else sizes[k], "k": k}


def types_table(buffer: Buffer, k: int, resamples: int, seed: int) -> dict[str, Row]:
    """T8 (Table 8 of the paper): for each kind of task, the AUROC of d_K at step ``k``, and that of the pair (signal,
    step) with the largest |rho| for this kind; in the row ``median``, medians over kinds.

    The caption says largest AUROC, which its row ``pick_two_obj_and_place`` contradicts (0.86, where d_10 has 0.91). We
    take the largest |rho|. The AUROC of the pair has no interval, because the pair is chosen among many.
    """
    table: dict[str, Row] = {}
    for kind in sorted({group.kind for group in buffer.groups if group.kind is not None}):
        part = buffer.only(lambda group, kind=kind: group.kind == kind)  # type: ignore[misc]
        best: Row | None = None
        for step in part.steps:
            for name in SIGNALS:
                rho, auroc = rank_statistics(part.values(step, name), part.variances)
                if rho is not None and auroc is not None and (best is None or abs(rho) > abs(best["rho"])):
                    best = {"signal": name, "k": step, "rho": rho, "auroc": auroc}
        d = part.values(k, DISTANCE)
        of_auroc = intervals(placed_statistics, rank_places(part.variances, d), resamples, seed)[1]
        zero = int(part.uniform.sum())
        table[kind] = {
            "n": len(part.groups),
            "n_zv": zero,
            "auroc": rank_statistics(d, part.variances)[1],
            "auroc_ci95": of_auroc if min(zero, len(part.groups) - zero) >= LEAST else None,
            "best": best,
        }
    if table:
        columns = {
            "auroc": [row["auroc"] for row in table.values() if row["auroc"] is not None],
            "best_auroc": [row["best"]["auroc"] for row in table.values() if row["best"]],
        }
        table["median"] = {name: float(np.median(some)) if some else None for name, some in columns.items()}
    return table


def labels_table(buffer: Buffer, k: int) -> dict[str, Row]:
    """Returns T10 (Table 10 of the paper): label -> medians at step ``k`` of d_K (the mean edit distance between the
    first K actions of the rollouts) and tau_K (the fraction of rollouts that have ended). A label says how a group
    ended.
    """
    table: dict[str, Row] = {}
    for label in LABELS:
        part = buffer.only(lambda group, label=label: group.label == label)  # type: ignore[misc]
        table[label] = {"n": len(part.groups), "k": k}
        table[label] |= median_row(part.values(k, DISTANCE), "median_d")
        table[label] |= median_row(part.values(k, TERMINATION), "median_tau")
    return table


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
    diverge, end = buffer.values(k, DISTANCE) < threshold, buffer.values(k, TERMINATION) >= ended
    none, uniform, either = np.zeros(len(buffer.groups), dtype=bool), buffer.uniform, diverge | end
    cuts = {
        "no_gate": none,
        "oracle": uniform,
        "dapo": none,
        "divergence": diverge,
        "termination": end,
        "either": either,
        "divergence+dapo": diverge,
    }
    columns = [*cuts.values(), buffer.tails(k), buffer.turns, buffer.energies, uniform, either]
    names = [(arm, name) for arm in cuts for name in COLUMNS] + [("random", name) for name in COLUMNS[:2]]
    measured = bootstrapped(_arms_table_values, columns, names, resamples, seed)
    n, fired, share = len(buffer.groups), int(either.sum()), float(uniform.mean())
    at_random = {
        "cut": fired,
        "tp": fired * share,
        "fp": fired * (1 - share),
        "precision": share if fired else None,
        "recall": fired / n if uniform.any() else None,
    }
    table = {arm: cut_counts(cut, uniform) | measured[arm] for arm, cut in cuts.items()}
    return table | {"random": at_random | measured["random"]}


def _arms_table_values(*columns: np.ndarray) -> np.ndarray:
    """The values of ``COLUMNS`` for all rules, ``random`` last: inputs (..., n) -> (..., m). One call for all rules
    computes a resample and its row ``random`` only once.
    """
    *cuts, tails, turns, energies, uniform, either = columns
    at_random, most = _random_arm_values(tails, turns, uniform, either), percent_of(tails * uniform, turns)[..., 0]
    columns_of = []
    for cut in cuts:
        saved, norm_left = percent_of(tails * cut, turns)[..., 0], kept_norm(cut, energies)
        columns_of += [saved, norm_left, most - saved, norm_left - at_random[..., 1]]
    return np.concatenate([np.stack(columns_of, -1), at_random], -1)


def _random_arm_values(tails: np.ndarray, turns: np.ndarray, uniform: np.ndarray, either: np.ndarray) -> np.ndarray:
    """The expected ``saved_pct`` and ``l2_pct`` of cutting as many random groups as ``either`` cuts, (..., n) -> (...,
    2). Of m groups with different rewards, which have the same norm unless a rollout was lost, a hypergeometric number
    H is kept, and the kept fraction of the norm is sqrt(H / m).
    """
    from scipy.stats import hypergeom

    n = tails.shape[-1]
    fired, useful = either.sum(-1)[..., None], (~uniform).sum(-1)[..., None]
    kept_groups = np.arange(n + 1)
    chances = hypergeom.pmf(kept_groups, n, useful, n - fired)
    norm = np.where(useful > 0, np.sqrt(kept_groups / np.maximum(useful, 1)), 1.0)
    saved = 100 * either.mean(-1) * tails.sum(-1) / turns.sum(-1)
    return np.stack([saved, 100 * (chances * norm).sum(-1)], -1)


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
        looked = buffer.only(lambda group, k=k: k in group.looks)  # type: ignore[misc]
        names = sorted({name for group in looked.groups for name in group.looks[k]} - set(SIGNALS))
        if names not in ([], [KNOWN]):
            parts = {"all": looked, "late": looked.only(lambda group: 2 * group.iteration > last)}
            table[str(k)] = {
                when: _look_rows(part, k, names, resamples, seed)
                for when, part in parts.items()
                if len(part.groups) > 1
            }
    return table


def _look_rows(buffer: Buffer, k: int, names: list[str], resamples: int, seed: int) -> dict[str, Row]:
    signals = {name: np.array([group.looks[k].get(name, np.nan) for group in buffer.groups]) for name in names}
    signals |= {name: buffer.values(k, name) for name in SIGNALS}
    rows = rank_rows(signals, buffer.variances, resamples, seed, ("over_d", "auroc", DISTANCE))
    size = {"groups": len(buffer.groups), "zero_variance": int(buffer.uniform.sum())}
    return {name: row | size for name, row in rows.items()}


def replayed_row(buffer: Buffer, cut: np.ndarray, k: int, resamples: int, seed: int) -> Row:
    """How much a gate would save on groups that were sampled without one: the turns after step ``k`` in the groups that it
    would cut, in percent of all turns. It is an offline estimate, from one arm, of what tier 1 of the paper measures as
    wall-clock time.
    """
    columns = [buffer.tails(k) * cut, buffer.turns]
    (interval,) = intervals(percent_of, columns, resamples, seed)
    row = {"unit": "turns", "measured": False, "groups": len(buffer.groups), "k": k}
    return {**row, "saved_pct": float(percent_of(*columns)[0]), "ci95": interval, **cut_counts(cut, buffer.uniform)}
