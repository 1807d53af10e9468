"""Converts the gate report to tables of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.reports.gates.paper_numbers import half_up
from turnwise.reports.tables import Table

Node = Mapping[str, Any]


def gate_tables(report: Node) -> list[Table]:
    tables = [_thresholds(report), _signals(report), _types(report), _labels(report), _arms(report), _tuned(report)]
    tables += [_looks(k, found) for k, found in report["looks"].items()]
    tables += [tier_table(report["tier1"])] if report["tier1"] else []
    tables += [_training(report["tier3"])] if report["tier3"] else []
    tables += [_paper(report["paper"])] if report["paper"] else []
    return [table for table in tables if table.rows]


def _thresholds(report: Node) -> Table:
    k = report["settings"]["k"]
    rows = [
        [name, *_counts(row), *(f"{_number(row[s])} {_range(row[f'{s}_ci95'], 1)}" for s in ("safe", "raw"))]
        for name, row in report["t1"].items()
    ]
    below, live = (_number(report["regime"][name]) for name in ("below_pct", "live_pct"))
    uniform = (
        f"{report['zero_variance']} of {report['groups']} groups are zero-variance (all their rewards are equal); "
        f"d_K is below {report['settings']['threshold']:g} in {below} % of all groups; in {live} % of all groups, d_K "
        "is below this threshold and a rollout still ran after step K"
    )
    left_out = "".join(f"; {count} groups {reason} left out" for reason, count in report["left_out"].items())
    headers = ["d_K <", "cut", "TP", "FP", "precision", "recall", "safe, %", "raw, %"]
    return Table(f"T1. Threshold sweep at K = {k}", headers, rows, [f"{uniform}{left_out}."])


def _signals(report: Node) -> Table:
    rows = [
        [k, name]
        + [f"{_number(row[what], 3)} {_range(row[f'{what}_ci95'], 2)}" for what in ("rho", "auroc")]
        + ["-" if row["p"] is None else f"{row['p']:.2g}"]
        for k, signals in report["t7"].items()
        for name, row in signals.items()
    ]
    note = (
        "rho: Spearman's correlation between the signal and the reward variance of the group. AUROC: how well the "
        "signal detects the groups that are not zero-variance."
    )
    peak = report["peak"]
    if peak["k"] is not None:
        note += f" Greatest |rho| of d_K: {_number(peak['rho'], 3)}, at K = {peak['k']}."
    return Table("T7. Signals", ["K", "signal", "rho", "AUROC", "p of rho"], rows, [note])


def _types(report: Node) -> Table:
    rows = []
    for name, row in report["t8"].items():
        if name == "median":
            rows.append([name, "", "", _number(row["auroc"], 2), "", _number(row["best_auroc"], 2)])
        else:
            best = row["best"]
            pair = f"{best['signal']}, {best['k']}" if best else "-"
            auroc = _number(best["auroc"], 2) if best else "-"
            own = f"{_number(row['auroc'], 2)} {_range(row['auroc_ci95'], 2)}"
            rows.append([name, str(row["n"]), str(row["n_zv"]), own, pair, auroc])
    headers = ["task type", "n", "zero-variance", "AUROC of d_K", "pair of greatest |rho|", "AUROC of the pair"]
    return Table("T8. By task type", headers, rows)


def _labels(report: Node) -> Table:
    rows = [
        [name, str(row["n"])]
        + [f"{_number(row[what], 2)} {_range(row[f'{what}_ci95'], 2)}" for what in ("median_d", "median_tau")]
        for name, row in report["t10"].items()
    ]
    k = next(iter(report["t10"].values()))["k"]
    return Table(f"T10. Medians at K = {k}", ["group", "n", "d_K", "tau_K"], rows)


def _arms(report: Node) -> Table:
    rows = [
        [name, *_counts(row)]
        + [f"{_number(row[what])} {_range(row[f'{what}_ci95'], 1)}" for what in ("saved_pct", "l2_pct")]
        for name, row in report["t12"].items()
    ]
    headers = ["arm", "cut", "TP", "FP", "precision", "recall", "turns saved, %", "norm kept, %"]
    return Table("T12. Arms", headers, rows)


def _tuned(report: Node) -> Table:
    tuned = report["tuned"]
    rows = []
    for counting in ("live", "all"):
        for kind in ("fixed", "sequential"):
            found, held_out = tuned[counting][kind], tuned[counting][f"{kind}_held_out"]
            if found is None:
                rows.append([counting, kind, "no threshold is precise enough", *["-"] * 6])
                continue
            pairs = [(k, t) for k, t in zip(found["steps"], found["thresholds"], strict=True) if t > 0]
            rule = ", ".join(f"{t:.3g} at {k}" for k, t in pairs)
            scores = [
                cell
                for score in (found, held_out)
                for cell in (str(score["cut"]), _number(score["precision"], 2), _number(score["saved_pct"]))
            ]
            rows.append([counting, kind, rule, *scores])
    notes = [
        "`live`: only groups in which a rollout still ran at the step are cut, as by a running gate. `all`: groups "
        "whose rollouts had all ended are cut too, as in the paper. `held out`: thresholds are tuned on nine tenths of "
        "the groups and evaluated on the remaining tenth; the counts of the ten splits are added.",
        f"The gate with k={report['settings']['k']} and threshold={report['settings']['threshold']:g} cuts "
        f"{_number(tuned['useful_lost_pct'])} % of the useful groups (whose rewards differ). With equally many cuts "
        f"and a precision of {tuned['floor_for_10_pct']:.2f}, a gate would cut at most 10 % of the useful groups.",
    ]
    headers = ["counting", "gate", "d_K <", "cut", "precision", "saved, %"]
    headers += ["held out: cut", "precision", "saved, %"]
    return Table(f"Tuned at a precision of at least {tuned['floor']:g}", headers, rows, notes)


def _looks(k: str, found: Node) -> Table:
    """Returns a table that compares values that gates computed during sampling with the signals of the paper."""
    rows = [
        [when, str(row["groups"]), str(row["zero_variance"]), name]
        + [f"{_number(row[what], 3)} {_range(row[f'{what}_ci95'], 2)}" for what in ("rho", "auroc", "over_d")]
        for when, signals in found.items()
        for name, row in signals.items()
    ]
    headers = ["iterations", "groups", "zero-variance", "signal", "rho", "AUROC", "AUROC over d_K's"]
    note = (
        "Only groups in which a rollout still ran after step K are used. The last column is the AUROC of the signal "
        "minus the AUROC of d_K; for its interval, both are resampled together."
    )
    return Table(f"Measured by running gates at K = {k}", headers, rows, [note])


def tier_table(tier: Node) -> Table:
    """Returns the table of the turns or seconds that a gate saved (T3, Table 3 of the paper)."""
    how = "measured" if tier["measured"] else "replayed on the buffer"
    row = [f"{_number(tier['saved_pct'], 2)} {_range(tier['ci95'], 2)}", *_counts(tier)]
    headers = [f"{tier['unit']} saved, %", "cut", "TP", "FP", "precision", "recall"]
    notes = []
    if "tokens_saved_pct" in tier:
        headers.insert(1, "tokens saved, %")
        row.insert(1, f"{_number(tier['tokens_saved_pct'], 2)} {_range(tier['tokens_ci95'], 2)}")
    if "first_steps_pct" in tier:
        cost = f"{tier['baseline']:,.0f} turns without the gate, {tier['gated']:,.0f} turns with the gate"
        notes.append(
            f"{cost}. {tier['first_steps_pct']:.1f} % of all groups have equal turns in the runs with and without the "
            f"gate up to the step at which the gate decided. {_number(tier['matched_pct'])} % of the groups that the "
            "gate did not cut have equal turns up to their end."
        )
    elif tier.get("matched_pct") is not None:
        notes.append(
            f"{tier['matched_pct']:.0f} % of the groups that the gate did not cut have equal numbers of turns and "
            "equal mean rewards with and without the gate."
        )
    return Table(f"Tier 1 (T3), {how}, {tier['groups']} groups", headers, [row], notes)


def _training(tier: Node) -> Table:
    zero, norms = tier["zero_advantage_pct"], tier["grad_norm"]
    rows = [
        ["wall-clock, s", f"{tier['baseline_s']:.0f}", f"{tier['gated_s']:.0f}", f"-{_number(tier['saved_pct'])} %"],
        [
            "gradient norm",
            _number(norms["baseline"], 3),
            _number(norms["gated"], 3),
            f"{tier['grad_amplification']:.2f} x",
        ],
        ["groups cut", "0", f"{tier['cut']:.0f} of {tier['groups']:.0f}", ""],
        [
            "zero-advantage groups of the batch, %",
            _number(zero["baseline"]),
            _number(zero["gated"]),
            f"predicts {tier['predicted_amplification']:.2f} x",
        ],
        [
            "zero-advantage groups as released, %",
            _number(zero["baseline"]),
            _number(zero["as_released"]),
            f"predicts {tier['predicted_as_released']:.2f} x",
        ],
    ]
    bootstrap, student = _range(tier["ci95"], 1), _range(tier["ci95_t"], 1)
    note = f"95 % intervals of the saved seconds: {bootstrap} % (bootstrap over seeds), {student} % (Student's t)."
    return Table(f"Tier 3 (T5), {len(tier['seeds'])} seeds", ["", "baseline", "gated", ""], rows, [note])


def _paper(cells: Sequence[Node]) -> Table:
    rows = [[c["key"], c["printed"], c["ours"] or "-", c["verdict"]] for c in cells if c["verdict"] != "agrees"]
    agree = sum(cell["verdict"] == "agrees" for cell in cells)
    note = (
        f"{agree} of the paper's {len(cells)} numbers are reproduced from the data to the printed digit. The table "
        "shows the remaining numbers."
    )
    return Table("Against the paper (arXiv:2605.05802)", ["figure", "printed", "data", ""], rows, [note])


def _counts(row: Node) -> list[str]:
    precision = " ".join([_number(row["precision"], 2), _range(row.get("precision_ci95"), 2)]).removesuffix(" -")
    return [*(_number(row[name], 0) for name in ("cut", "tp", "fp")), precision, _number(row["recall"], 2)]


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else half_up(value, digits)


def _range(bounds: Sequence[float] | None, digits: int) -> str:
    return "-" if bounds is None else f"[{bounds[0]:.{digits}f}, {bounds[1]:.{digits}f}]"
