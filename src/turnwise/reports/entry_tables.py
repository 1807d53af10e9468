"""Creates tables about entries (tables and figures of papers): numbers, claims, training costs, and a summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from turnwise.evaluation.stats import mean_interval
from turnwise.experiments.jobs import job_of
from turnwise.json_and_yaml import parse_yaml
from turnwise.reports.claim_verdict import VERDICTS, Decision, Runs, recorded
from turnwise.reports.cost_to_reach import reach_table
from turnwise.reports.entries import Changed, Entry, untrained
from turnwise.reports.gates.report_tables import tier_table
from turnwise.reports.gates.sweep_report import COMMAND
from turnwise.reports.metric_labels import words
from turnwise.reports.power import planned
from turnwise.reports.run_metrics import is_change
from turnwise.reports.sentences import all_on_dialogues, signed
from turnwise.reports.tables import Table, estimate_text, plain

INTERVAL_NOTE = (
    "All intervals are 95 % intervals. The interval of a claim covers a Student's t interval over seeds and, if the "
    "runs recorded the outcomes of single tasks, a paired bootstrap interval over tasks. `holds`: the whole interval "
    "is above the claim's margin. `fails`: the whole interval is below the margin or, if the margin is 0, below the "
    "smallest difference that counts as an advantage. `undecided`: the claim neither holds nor fails. `untestable`: a "
    "precondition of the claim is false at this scale, so the runs neither support nor refute the claim. `(one seed)`: "
    "only one seed was compared, so the interval is over tasks. `(2 of 6 planned seeds)`: the missing seeds may change "
    "the verdict."
)
EACH_NOTE = (
    "Each claim is judged at 95 %, without a correction for the number of claims. An entry (a table or figure of a "
    "paper) holds if all of its claims that can be tested at this scale hold. It fails if one of its claims fails, and "
    "is untestable if none of its claims can be tested."
)
GATE_NOTE = (
    "All intervals are 95 % intervals over groups of rollouts. The interval of the difference of two rows is computed "
    "from the intervals of both rows, as if the rows had different groups (Zou and Donner 2008). `holds`: the whole "
    "interval is above the claim's margin. `fails`: the whole interval is below the margin. `undecided`: the claim "
    "neither holds nor fails, or there is no interval."
)
SIGN_NOTE = "Column `ours`: the value that the claim says is greater, minus the other value. For `a < b` it is b - a."


def summary_table(entries: Sequence[Entry]) -> Table:
    """Returns a table with a line for each entry (a table or figure of a paper), with its verdict."""
    scale = entries[0].asked.scale if entries else "tiny"
    table = Table(f"The papers' directions, scale {scale}", ["entry", "sweep", "verdict", "claims", "runs"], [])
    for entry in entries:
        sweep = entry.asked.sweep
        runs = str(len(entry.results)) if entry.results or not sweep.gate_report else "data"
        name = f"{sweep.paper}, {sweep.entry}"
        said = (entry.verdict or "-") + (" (one seed)" if entry.one_seed else "")
        table.rows.append([name, sweep.name, said, _tally(entry.decisions), runs])
    places = ", ".join(dict.fromkeys(f"{place}/" for entry in entries for place in entry.kept))
    mixed = [f"For rows that you have not run, the table uses the runs in {places}."] if places else []
    left_out = dict.fromkeys(note for entry in entries for note in entry.notes)
    changed = {one.folder: one for entry in entries for one in entry.changed}
    table.notes = [INTERVAL_NOTE, EACH_NOTE, *mixed, *_changed_notes(changed.values()), *left_out]
    return table


def _tally(decisions: Sequence[Decision]) -> str:
    told = []
    for verdict in VERDICTS:
        found = [d for d in decisions if d.verdict == verdict and not d.claim.ours]
        alone = sum(d.one_seed for d in found) if verdict in ("holds", "fails") else 0
        if found:
            told.append(f"{len(found)} {verdict}" + (f" ({alone} on one seed)" if alone else ""))
    return ", ".join(told) or "none"


def entry_tables(entry: Entry) -> list[Table]:
    """Returns an entry's tables: its numbers (ours and the paper's), preconditions, claims with verdicts, and costs."""
    sweep = entry.asked.sweep
    metrics = list(dict.fromkeys([*filter(None, sweep.columns.values()), *sweep.directions, *sweep.also]))
    printed = [name for name in sweep.columns if any(name in row.numbers for row in sweep.rows.values())]
    headers = [
        "row",
        "seeds",
        *(f"ours, {words(metric, all_on_dialogues(entry.results))}" for metric in metrics),
        *(f"paper, {name}" for name in printed),
    ]
    table = Table(f"{sweep.title}, scale {entry.asked.scale}", headers, [])
    for name, runs in entry.rows.items():
        row = sweep.rows[name]
        seeds = entry.groups.seeds(name) if entry.groups else sorted(runs)
        ours = [
            _gate_cell(metric, name, entry.gates) if sweep.gate_report else _cell(entry.by_seed(name, metric), metric)
            for metric in metrics
        ]
        paper = [f"{row.numbers[column]:g}" if column in row.numbers else "-" for column in printed]
        table.rows.append([row.label or name, _listed(seeds), *ours, *paper])
    table.notes = [note for note in (sweep.note, *_provenance(entry)) if note]
    table.notes += [*_changed_notes(entry.changed), *entry.notes]
    spent = [_reach(entry)] if sweep.reach and entry.results else []
    spent += [costs] if (costs := _costs(entry)).rows else []
    if entry.gates and entry.gates["source"] == "recorded" and "tier1" in sweep.rows:
        spent.append(tier_table(entry.gates["tier1"]))
    preconditions = [_preconditions(entry)] if entry.findings else []
    claims = [_claims(entry)] if entry.decisions else []
    return [table, *preconditions, *claims, *spent]


def _preconditions(entry: Entry) -> Table:
    headers = ["precondition", "measured on", "pilot seeds", "measured", "wanted", "paper", "true here"]
    table = Table("Preconditions", headers, [])
    for one in entry.findings:
        value = "-" if one.value is None else plain(one.value)
        spread = f" ({plain(min(one.values))} to {plain(max(one.values))})" if len(one.values) > 1 else ""
        told = {True: "yes", False: "no", None: "not measured"}[one.true]
        if one.true is False and one.bound.remedy:
            told += f"; {one.bound.remedy}"
        wanted, paper = one.bound.bounds, one.bound.paper or "-"
        table.rows.append([one.bound.says, one.label, _listed(one.seeds), value + spread, wanted, paper, told])
    table.notes = [
        "Preconditions are measured on pilot runs, with tasks of eval.seed=0; no claim uses the results of pilot runs. "
        "The column `measured` shows the mean over the pilot seeds, and in brackets the least and the greatest value. A "
        "claim is untestable if a precondition that it needs is false here."
    ]
    return table


def _claims(entry: Entry) -> Table:
    labels = entry.asked.sweep.labels
    decoded = any(d.beside for d in entry.decisions)
    beside = ["other decoding mode"] if decoded else []
    headers = ["claim", "metric", "ours", "95 %", "seeds", "tasks", *beside, "verdict"]
    table = Table("Claims", headers, [])
    for d in entry.decisions:
        bounds = _bounds(d)
        alone = d.one_seed and d.verdict in ("holds", "fails")
        said = d.verdict + (" (one seed)" if alone else _interim(entry, d)) + (", our claim" if d.claim.ours else "")
        said += f": {d.why}" if d.why else ""
        if d.verdict == "undecided" and not d.why and (plan := planned(d)):
            said += f": 80 % power for a difference of {plain(plan.effect)} needs {plan.sentence}"
        difference = "-" if d.difference is None else plain(d.difference)
        other = [_other(d.beside)] if decoded else []
        claim = " ".join(labels.get(word, word) for word in d.claim.text.split())
        said_of = words(d.metric, all_on_dialogues(entry.results))
        table.rows.append([claim, said_of, difference, bounds, _sides(d), str(d.tasks or "-"), *other, said])
    table.notes = [SIGN_NOTE, GATE_NOTE if entry.asked.sweep.gate_report else INTERVAL_NOTE, EACH_NOTE]
    return table


def _interim(entry: Entry, decision: Decision) -> str:
    """Returns a text such as ``(2 of 6 planned seeds)`` if a claim was decided before all planned seeds were run."""
    seeds, all_seeds = len(decision.seeds), len(entry.asked.sweep.seeds)
    decided = decision.verdict in ("holds", "fails")
    return f" ({seeds} of {all_seeds} planned seeds)" if decided and 0 < seeds < all_seeds else ""


def _bounds(decision: Decision) -> str:
    return "-" if decision.low is None or decision.high is None else f"[{plain(decision.low)}, {plain(decision.high)}]"


def _other(beside: Decision | None) -> str:
    if beside is None or beside.difference is None:
        return "-"
    way = "greedy" if ".greedy." in beside.metric else "sampled"
    return f"{way}: {plain(beside.difference)} {_bounds(beside)}, {beside.verdict}"


def _sides(decision: Decision) -> str:
    """Returns the compared seeds as text; the seeds of each row if a row has more seeds than were compared."""
    if all(seeds == decision.seeds for seeds in decision.sides.values()):
        return _listed(decision.seeds)
    return "; ".join(f"{row} {_listed(seeds)}" for row, seeds in decision.sides.items())


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds)) or "-"


def _reach(entry: Entry) -> Table:
    sweep = entry.asked.sweep
    rows = {name: list(entry.rows.get(name, {}).values()) for name in sweep.rows}
    return reach_table(sweep.reach, rows, sweep.labels)


def _costs(entry: Entry) -> Table:
    metrics = {
        "turns": "rollout_turns",
        "tokens": "rollout_tokens",
        "trajectories": "last rollout/trajectories",
        "CPU s": "cpu_seconds",
    }
    profiles = {
        "profile turns": "profile_turns",
        "profile CPU s": "profile_cpu_seconds",
        "profile s": "seconds.profile",
    }
    labels = entry.asked.sweep.labels
    profiled = [name for name, runs in entry.rows.items() if any(_mean(runs, metric) for metric in profiles.values())]
    metrics |= profiles if profiled else {}
    table = Table("What training cost, a run", ["row", "seeds", *metrics, "predictor, % of CPU"], [])
    for name, runs in entry.rows.items():
        cells = [_mean(runs, metric) for metric in metrics.values()]
        share = _mean(runs, "cpu/predictor / cpu/iteration")
        if any(cells):
            shown = ["-" if value is None else f"{value:,.0f}" for value in cells]
            predictor = "-" if share is None else f"{100 * share:.1f}"
            table.rows.append([labels[name], _listed(sorted(runs)), *shown, predictor])
    table.notes = [
        "Trajectories are counted as in TRACE: a rollout counts 1, a continuation counts 1/2. CPU seconds are the CPU "
        "time that the training process spends on rollouts, predictor and updates. Other programs on the machine "
        "change CPU time far less than wall-clock time."
    ]
    if profiled:
        table.notes.append(
            "A profile samples actions at demonstrated turns, to choose the states to train on. `profile turns`: these "
            "actions (in runs of older code, only those that were judged). `profile s`: the wall-clock time of the "
            "profiles in the last start of the run. All other columns leave out the cost of profiles."
        )
    if unknown := [labels[name] for name in profiled if _mean(entry.rows[name], "profile_cpu_seconds") is None]:
        version = "The version of the code that ran these rows"
        table.notes.append(f"{version} did not record the CPU seconds of profiles: {', '.join(unknown)}.")
    if refilled := [labels[name] for name, runs in entry.rows.items() if _refills(runs)]:
        table.notes.append(
            f"{', '.join(refilled)}: turns, tokens and CPU seconds include the groups that DAPO's filter discarded "
            "(advantage.zero_variance=refill). Trajectories do not include them: rows with equal budgets keep equally "
            "many trajectories."
        )
    return table


def _refills(runs: Runs) -> bool:
    """Returns whether the runs of a row use DAPO's filter (``advantage.zero_variance=refill``)."""
    for run in runs.values():
        try:
            text = (run.folder / "config.yaml").read_bytes()
            # the text is searched for "refill" first, because parsing YAML is slow
            advantage = (parse_yaml(text).get("advantage") or {}) if b"refill" in text else {}
        except (OSError, ValueError, AttributeError):
            continue
        return isinstance(advantage, Mapping) and advantage.get("zero_variance") == "refill"
    return False


def _mean(runs: Runs, metric: str) -> float | None:
    values = [value for run in runs.values() if (value := run.value(metric)) is not None]
    return sum(values) / len(values) if values else None


def _provenance(entry: Entry) -> list[str]:
    sweep, scale = entry.asked.sweep, entry.asked.scale
    if sweep.gate_report:
        return [_groups_note(entry), *_hashes_note(entry.groups.hashes if entry.groups else {})]
    reasons: dict[str, list[str]] = {}
    for name in entry.rows:
        cannot = job_of(entry.asked, name, sweep.seeds[0]).cannot
        if cannot:
            reasons.setdefault(cannot, []).append(name)
    notes = [f"Not run at scale={scale}: {', '.join(rows)} ({reason})." for reason, rows in reasons.items()]
    for place, names in entry.kept.items():
        commits = {run.result.commit[:12] for name in names for run in entry.rows[name].values()}
        notes.append(
            f"Rows whose runs are in {place}/, made with the code of {' and '.join(sorted(commits))}: {', '.join(names)}."
        )
    if base := [name for name in untrained(entry.asked, entry.rows) if len(entry.rows[name]) > 1]:
        notes.append(f"These rows have no training, so all seeds have equal results: {', '.join(sorted(base))}.")
    hashes = {name: runs[min(runs)].result.config_hash for name, runs in entry.rows.items() if runs}
    return [*notes, *_hashes_note(hashes)]


def _hashes_note(hashes: Mapping[str, str]) -> list[str]:
    told = ", ".join(f"{name} `{found}`" for name, found in hashes.items() if found)
    return [f"Hash of the configuration of each row's first seed: {told}."] if told else []


def _changed_notes(changed: Iterable[Changed]) -> list[str]:
    rows: dict[str, list[Changed]] = {}
    for one in changed:
        rows.setdefault(str(one.folder.parent), []).append(one)
    return [
        f"{folder}: these runs have another configuration hash than row {found[0].row} has now: "
        + ", ".join(f"seed {one.seed} (`{one.kept or 'none written down'}`, now `{one.now}`)" for one in found)
        + ". `train.py` with `fresh=true` runs them again."
        for folder, found in rows.items()
    ]


def _groups_note(entry: Entry) -> str:
    if entry.gates is None:
        return f"No groups are recorded yet; run `python train.py sweep={entry.asked.sweep.name}`, or give data=PATH."
    commands = entry.groups.commands if entry.groups else (f"{COMMAND} data={entry.gates['data']}",)
    commits = sorted({result.commit[:12] for result in entry.groups.results}) if entry.groups else []
    of = f" (commit {', '.join(commits)})" if commits else ""
    return f"Computed from {entry.gates['groups']} recorded groups of rollouts{of} with: {'; '.join(commands)}."


def _cell(seeds: Mapping[int, float], metric: str) -> str:
    return estimate_text(mean_interval(list(seeds.values())), signed if is_change(metric) else plain) if seeds else "-"


def _gate_cell(metric: str, row: str, gates: Mapping[str, Any] | None) -> str:
    found = recorded(gates, metric.replace("{}", row))
    return "-" if found is None else plain(found[0])
