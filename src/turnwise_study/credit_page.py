"""The result of an audit of credit as a file, a leaderboard of the rules, and figures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnwise.runs.figures import Figure
from turnwise.text import count, duration
from turnwise_study.credit_audit import RULES, AuditPart, join_audits, score_rules
from turnwise_study.entry_figures import Panel, Point, entry_dots_figure
from turnwise_study.tables import Table

SHOWN = {"snr": "signal to noise", "rank": "rank correlation", "sign": "same sign, %"}
SHARES = {"signal": "signal, %", "bias": "bias, %", "variance": "variance, %", "silent": "no credit, %"}
PERCENT = ("sign", *SHARES)
HOW = (
    "Signal to noise is for each 1,000 generated tokens. Brackets hold the 95 % bootstrap interval over tasks. Signal, "
    "bias and variance are the shares of the mean square of a rule's credit. The sign is that of turns whose advantage "
    "differs from 0 at a false discovery rate of 5 %; no credit counts one half."
)


def audit_result(parts: Sequence[AuditPart], about: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``audit.json``. ``about`` says what was audited (panel, seeds, command, commit)."""
    truth, credits, tokens = join_audits(parts)
    turns = [turn for part in parts for turn in part.turns]
    paths = {id(turn.path): turn.path for turn in turns}.values()
    cost = {
        step: {name: round(sum(part.cost[step][name] for part in parts), 2) for name in numbers}
        for step, numbers in parts[0].cost.items()
    }
    power = float((truth.advantage_T**2 - truth.variance_T).mean())
    metrics = score_rules(credits, tokens, truth)
    return {
        **about,
        "tasks_sha256": hashlib.sha256("\n".join(sorted(path.state.task.id for path in paths)).encode()).hexdigest()[:16],
        "turns": len(turns),
        "episodes": len(paths),
        "episode_turns": float(np.mean([len(path.turns) for path in paths])),
        "continuations": max(max(turn.q.trials, turn.v.trials) for turn in turns),
        "mean_value": float(np.mean([turn.v.mean for turn in turns])),
        "matter": float(truth.matters_T.mean()),
        "rms_advantage": power**0.5 if power > 0 else None,
        "rms_error": float(truth.variance_T.mean() ** 0.5),
        "cost": cost,
        "rules": {rule: {"form": RULES[rule][0] if rule in RULES else "group", "tokens": tokens[rule], **metrics[rule]}
                  for rule in credits},
    }  # fmt: skip


def score_cell(metric: str, numbers: Mapping[str, Any], interval: bool) -> str:
    unit, digits = (100, 0) if metric in PERCENT else (1, 2)

    def show(number: float | None) -> str:
        return "-" if number is None else f"{unit * number:.{digits}f}"

    ends = f" [{show(numbers['low'])}, {show(numbers['high'])}]" if interval else ""
    return show(numbers["value"]) + ends


def ordered(rules: Mapping[str, Any]) -> list[str]:
    """From the highest signal to noise down; rules without a number come last."""
    numbers = {rule: of_rule["snr"]["value"] for rule, of_rule in rules.items()}
    return sorted(rules, key=lambda rule: (numbers[rule] is None, -(numbers[rule] or 0.0)))


def leaderboard(result: Mapping[str, Any]) -> Table:
    heads = ["rule", "trees", *SHOWN.values(), *SHARES.values(), "tokens of a tree"]
    rows = []
    for rule in ordered(result["rules"]):
        of_rule = result["rules"][rule]
        cells = [score_cell(metric, of_rule[metric], True) for metric in SHOWN]
        cells += [score_cell(metric, of_rule[metric], False) for metric in SHARES]
        rows.append([rule, of_rule["form"], *cells, count(of_rule["tokens"])])
    tokens = sum(step.get("tokens", 0) for step in result["cost"].values())
    seconds = sum(step["cpu_seconds"] for step in result["cost"].values())
    rms = "-" if result["rms_advantage"] is None else f"{result['rms_advantage']:.3f}"
    note = (
        f"{result['turns']} turns of {result['episodes']} episodes ({result['episode_turns']:.1f} turns each), seeds "
        f"{', '.join(map(str, result['seeds']))}. Mean value {result['mean_value']:.2f}. The root mean square of the true "
        f"advantage is {rms}; the advantage of {100 * result['matter']:.0f} % of the turns differs from 0. "
        f"{result['continuations']} continuations of each history, which gives an advantage an error of "
        f"{result['rms_error']:.3f}. {count(tokens)} tokens, {duration(seconds)} of CPU time. Commit "
        f"`{result['commit'][:12]}`, tasks `{result['tasks_sha256']}`."
    )
    return Table(f"Credit audit, {result['panel']}", heads, rows, [note, HOW, f"    {result['command']}"])


def credit_learning_table(result: Mapping[str, Any], changes: Mapping[str, Sequence[float]], sweep: str) -> Table:
    """Sets the audited quality of rules beside what training with them brought.

    Args:
        changes: rule -> change of held-out success of each seed, in points.
    """
    from scipy.stats import spearmanr

    rules = [rule for rule in ordered(result["rules"]) if rule in changes]
    rows = []
    for rule in rules:
        of_rule, points = result["rules"][rule], changes[rule]
        seeds = f"{np.mean(points):+.1f} ({', '.join(f'{value:+.1f}' for value in points)})"
        rows.append([rule, *(score_cell(metric, of_rule[metric], True) for metric in ("snr", "rank")), seeds])
    lines = []
    for metric in ("snr", "rank"):
        known = [rule for rule in rules if result["rules"][rule][metric]["value"] is not None]
        quality = [result["rules"][rule][metric]["value"] for rule in known]
        test = spearmanr(quality, [float(np.mean(changes[rule])) for rule in known])
        lines.append(f"{SHOWN[metric]} {test.statistic:+.2f} (p = {test.pvalue:.2f})")
    how = f"Spearman's correlation of the mean change with the audited quality, over {len(rules)} rules: {', '.join(lines)}."
    heads = ["rule", SHOWN["snr"], SHOWN["rank"], "change of held-out success, points (each seed)"]
    title = f"Does audited quality predict learning? {result['panel']}"
    return Table(title, heads, rows, [how, f"Changes: `sweep={sweep}`. Quality:", f"    {result['command']}"])


def credit_figure(result: Mapping[str, Any]) -> Figure:
    order, panels = ordered(result["rules"]), []
    for metric in ("snr", "rank"):
        of_rule = {rule: result["rules"][rule][metric] for rule in order}
        points = [Point(rule, n["value"], n["low"], n["high"]) for rule, n in of_rule.items() if n["value"] is not None]
        panels.append(Panel(SHOWN[metric], points, zero=True))
    title = f"How well credit rules estimate true advantages, {result['panel']}"
    return entry_dots_figure(
        title, "credit", panels, "Dots: estimates; bars: 95 % bootstrap intervals over tasks.", order
    )
