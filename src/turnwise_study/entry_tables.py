"""Shows entries (tables and figures of papers) as tables: our numbers beside the paper's, claims with verdicts, costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from turnwise.evaluation.stats import kept_by_corrections, mean_interval
from turnwise.files import parse_yaml
from turnwise.text import interval, signed
from turnwise_study.claims import VERDICTS, Decision
from turnwise_study.comparison import hashes_note
from turnwise_study.entries import Changed, Entry, claims_of_entries, count_entry_verdicts, sweep_of_entry, untrained
from turnwise_study.gates.report import number_in_report, tier_table
from turnwise_study.run_metrics import Runs, all_on_dialogues, is_change, metric_label, values
from turnwise_study.sweeps.jobs import job_of
from turnwise_study.tables import Table, estimate_text, plain

INTERVAL_NOTE = (
    "All intervals are 95 % intervals. If the runs recorded the outcome of each task, the interval of a claim "
    "accounts for the variation over seeds and over tasks; otherwise it is Student's t interval over seeds. A "
    "claim's margin is the number in the claim, or 0. `holds`: the whole interval is above the margin. `fails`: the "
    "whole interval is below the margin or, if the margin is 0, below the smallest difference that counts as an "
    "advantage. `undecided`: the claim neither holds nor fails. `untestable`: a precondition of the claim is false "
    "at this scale, so the runs neither support nor refute the claim. `sampled undecided, greedy fails`: by sampled "
    "episodes, which decide, the claim is undecided; by greedy decoding it would fail. `(one seed)`: only one seed "
    "was compared, so the interval is over tasks. `(2 of 6 planned seeds)`: the missing seeds may change the "
    "verdict."
)
EACH_NOTE = (
    "Each claim is judged at 95 %, without a correction for the number of claims. An entry (a table or figure of a "
    "paper) holds if all of its claims that can be tested at this scale hold. It fails if one of its claims fails, and "
    "is untestable if none of its claims can be tested."
)
GATE_NOTE = (
    "All intervals are 95 % intervals over groups of rollouts. The interval of the difference of two rows is "
    "computed from the intervals of both rows, as if the two rows came from different groups (Zou and Donner 2008); "
    "they share them, so it is an approximation. `holds`: the whole interval is above the claim's margin. `fails`: "
    "the whole interval is below the margin. `undecided`: the claim neither holds nor fails, or there is no "
    "interval."
)
SIGN_NOTE = "Column `ours`: the value that the claim says is greater, minus the other value. For `a < b` it is b - a."


def summary_table(entries: Sequence[Entry]) -> Table:
    scale = entries[0].request.scale if entries else "tiny"
    table = Table(f"The papers' directions, scale {scale}", ["entry", "sweep", "verdict", "claims", "runs"], [])
    for entry in entries:
        sweep, owner = entry.request.sweep, sweep_of_entry(entry)
        runs = str(len(entry.results)) if entry.results or not sweep.gate_report else "data"
        runs += f", of {owner}" if entry.results and owner != sweep.name else ""
        word = (entry.verdict or "-") + (" (one seed)" if entry.one_seed else "")
        table.rows.append([f"{sweep.paper}, {sweep.entry}", sweep.name, word, _tally(entry.decisions), runs])
    places = ", ".join(dict.fromkeys(f"{place}/" for entry in entries for place in entry.kept))
    mixed = [f"For rows that you have not run, the table uses the runs in {places}."] if places else []
    left_out = dict.fromkeys(note for entry in entries for note in entry.notes)
    changed = {one.folder: one for entry in entries for one in entry.changed}
    table.notes = [
        *_count_sentences(entries),
        INTERVAL_NOTE,
        EACH_NOTE,
        *mixed,
        *_changed_notes(changed.values()),
        *left_out,
    ]
    return table


def _count_sentences(entries: Sequence[Entry]) -> list[str]:
    """Returns sentences on the papers' claims: each claim and each set of runs is counted once."""
    claims = claims_of_entries(entries)
    if not claims:
        return []
    sets: Counter[str] = Counter()
    for counts in count_entry_verdicts(entries).values():
        sets.update(counts)
    alone = sets.pop("one_seed", 0)
    by_verdict = Counter(one.verdict for one in claims)
    holds = [one for one in claims if one.verdict == "holds"]
    ordered = sorted((one.p_value, one.verdict == "holds") for one in claims if one.p_value is not None)
    bh, holm = kept_by_corrections([p for p, _ in ordered])
    return [
        f"The {len(claims)} distinct claims of the papers with an interval have these verdicts: "
        + ", ".join(f"{verdict} {n}" for verdict, n in by_verdict.most_common())
        + f" ({sum(one.one_seed for one in holds)} of those that hold on one seed, and {sum(one.turns for one in claims)} "
        f"verdicts would differ with the other decoding). Of the {len(holds)} that hold, "
        f"{sum(good for _, good in ordered[:bh])} remain with Benjamini and Hochberg's correction at 5 % over all "
        f"{len(ordered)}, and "
        f"{sum(good for _, good in ordered[:holm])} with Holm's; p-values come from a normal distribution "
        "with the same interval.",
        "Entries, by the verdict of all their claims, with those that show the same runs counted as one: "
        + ", ".join(f"{verdict} {n}" for verdict, n in sets.most_common() if n)
        + (f" ({alone} on one seed)." if alone else "."),
    ]


def _tally(decisions: Sequence[Decision]) -> str:
    parts = []
    for verdict in VERDICTS:
        equal = [d for d in decisions if d.verdict == verdict and not d.claim.ours]
        alone = sum(d.one_seed for d in equal) if verdict in ("holds", "fails") else 0
        if equal:
            parts.append(f"{len(equal)} {verdict}" + (f" ({alone} on one seed)" if alone else ""))
    return ", ".join(parts) or "none"


def entry_tables(entry: Entry) -> list[Table]:
    """An entry's tables: its numbers (ours and the paper's), preconditions, claims with verdicts, and costs."""
    sweep, dialogues = entry.request.sweep, all_on_dialogues(entry.results)
    metrics = list(dict.fromkeys([*filter(None, sweep.columns.values()), *sweep.directions, *sweep.also]))
    printed = [name for name in sweep.columns if any(name in row.numbers for row in sweep.rows.values())]
    ours = [f"ours, {metric_label(metric, dialogues)}" for metric in metrics]
    headers = ["row", "seeds", *ours, *(f"paper, {name}" for name in printed)]
    table = Table(f"{sweep.title}, scale {entry.request.scale}", headers, [])
    for name, runs in entry.rows.items():
        row = sweep.rows[name]
        seeds = entry.groups.seeds(name) if entry.groups else sorted(runs)
        paper = [f"{row.numbers[column]:g}" if column in row.numbers else "-" for column in printed]
        label = row.label or name
        table.rows.append([label, _listed(seeds), *(_cell(entry, name, m) for m in metrics), *paper])
        if list(sweep.labels.values()).count(label) == 1:
            table.folders[label] = {seed: run.folder for seed, run in runs.items()}
    table.notes = [note for note in (sweep.note, *_provenance(entry)) if note]
    table.notes += [*_changed_notes(entry.changed), *entry.notes]
    costs = _costs(entry)
    spent = [costs] if costs.rows else []
    if entry.gates and "tier1" in sweep.rows:
        spent.append(tier_table(entry.gates["tier1"]))
    preconditions = [_preconditions(entry)] if entry.findings else []
    claims = [_claims_table(entry)] if entry.decisions else []
    return [table, *preconditions, *claims, *spent]


def _cell(entry: Entry, row: str, metric: str) -> str:
    if entry.request.sweep.gate_report:
        number = number_in_report(entry.gates, metric, row)
        return "-" if number is None else plain(number.mean)
    seeds = entry.by_seed(row, metric)
    return estimate_text(mean_interval(list(seeds.values())), signed if is_change(metric) else plain) if seeds else "-"


def _preconditions(entry: Entry) -> Table:
    headers = ["precondition", "measured on", "seeds", "measured", "wanted", "paper", "true here"]
    table = Table("Preconditions", headers, [])
    for one in entry.findings:
        value = "-" if one.value is None else plain(one.value)
        spread = f" ({plain(min(one.values))} to {plain(max(one.values))})" if len(one.values) > 1 else ""
        remedy = f"; {one.bound.remedy}" if one.true is False and one.bound.remedy else ""
        true = {True: "yes", False: "no", None: "not measured"}[one.true] + remedy
        wanted, paper = one.bound.bounds, one.bound.paper or "-"
        table.rows.append([one.bound.says, one.label, _listed(one.seeds), value + spread, wanted, paper, true])
    table.notes = [
        "Seeds that no row has are those of pilot runs, which have the tasks of eval.seed=0 and count for no claim. A "
        "precondition with a row's own seeds is measured on the runs of the table. The column `measured` shows the mean over "
        "the seeds, and in brackets the least and the greatest value. A claim is untestable if a precondition that it needs "
        "is false here."
    ]
    return table


def _claims_table(entry: Entry) -> Table:
    labels, dialogues = entry.request.sweep.labels, all_on_dialogues(entry.results)
    decoded = any(d.beside for d in entry.decisions)
    beside = ["other decoding mode"] if decoded else []
    table = Table("Claims", ["claim", "metric", "ours", "95 %", "seeds", "tasks", *beside, "verdict"], [])
    planned = len(entry.request.sweep.seeds)
    for d in entry.decisions:
        verdict: str = d.verdict
        if d.turns and d.beside:
            verdict = ", ".join(f"{_mode(one)} {one.verdict}" for one in (d, d.beside))
        if d.verdict in ("holds", "fails") and d.one_seed:
            verdict += " (one seed)"
        elif d.verdict in ("holds", "fails") and 0 < len(d.seeds) < planned:
            verdict += f" ({len(d.seeds)} of {planned} planned seeds)"
        verdict += ", our claim" * d.claim.ours + (f": {d.why}" if d.why else "")
        difference = "-" if d.difference is None else plain(d.difference)
        other = [_other(d.beside)] if decoded else []
        claim = " ".join(labels.get(word, word) for word in d.claim.text.split())
        seeds = _listed(d.seeds)
        if any(seeds_of_row != d.seeds for seeds_of_row in d.sides.values()):  # a row has more seeds than were compared
            seeds = "; ".join(f"{row} {_listed(of_row)}" for row, of_row in d.sides.items())
        cells = [
            claim,
            metric_label(d.metric, dialogues),
            difference,
            _bounds(d),
            seeds,
            str(d.tasks or "-"),
            *other,
            verdict,
        ]
        table.rows.append(cells)
    table.notes = [SIGN_NOTE, GATE_NOTE if entry.request.sweep.gate_report else INTERVAL_NOTE, EACH_NOTE]
    return table


def _bounds(decision: Decision) -> str:
    return "-" if decision.low is None or decision.high is None else interval((decision.low, decision.high), plain)


def _other(beside: Decision | None) -> str:
    if beside is None or beside.difference is None:
        return "-"
    return f"{_mode(beside)}: {plain(beside.difference)} {_bounds(beside)}, {beside.verdict}"


def _mode(decision: Decision) -> str:
    return "greedy" if ".greedy." in decision.metric else "sampled"


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds)) or "-"


def _costs(entry: Entry) -> Table:
    metrics = {"turns": "rollout_turns", "tokens": "rollout_tokens", "trajectories": "last rollout/trajectories"}
    metrics["CPU s"] = "cpu_seconds"
    profiles = {
        "profile turns": "profile_turns",
        "profile CPU s": "profile_cpu_seconds",
        "profile s": "seconds.profile",
    }
    labels = entry.request.sweep.labels
    profiled = [name for name, runs in entry.rows.items() if any(_mean(runs, metric) for metric in profiles.values())]
    metrics |= profiles if profiled else {}
    table = Table("What training cost, a run", ["row", "seeds", *metrics, "predictor, % of CPU"], [])
    for name, runs in entry.rows.items():
        numbers = [_mean(runs, metric) for metric in metrics.values()]
        share = _mean(runs, "cpu/predictor / cpu/iteration")
        if any(numbers):
            cells = ["-" if value is None else f"{value:,.0f}" for value in numbers]
            predictor = "-" if share is None else f"{100 * share:.1f}"
            table.rows.append([labels[name], _listed(sorted(runs)), *cells, predictor])
    table.notes = [
        "Trajectories are counted as in TRACE: a rollout from the start of a tree counts 1, one that continues another "
        "counts 1/2. CPU seconds are the CPU time that the training process spends on rollouts, predictor and updates. "
        "Other programs on the machine change CPU time far less than wall-clock time."
    ]
    if profiled:
        table.notes.append(
            "A profile samples actions at demonstrated turns, to choose the states to train on. `profile turns`: these "
            "actions. `profile s`: the wall-clock time of the profiles in the last start of the run. The columns without "
            "`profile` leave out the cost of profiles."
        )
    if refilled := [labels[name] for name, runs in entry.rows.items() if _refills(runs)]:
        table.notes.append(
            f"{', '.join(refilled)}: turns, tokens and CPU seconds include the groups that DAPO's filter discarded "
            "(advantage.zero_variance=refill). Trajectories do not include them: rows with equal budgets keep equally "
            "many trajectories."
        )
    return table


def _refills(runs: Runs) -> bool:
    """Whether the first readable configuration of a row's runs has DAPO's filter."""
    for run in runs.values():
        try:
            text = (run.folder / "config.yaml").read_bytes()
            # the text is searched for "refill" first, because parsing YAML is slow
            return b"refill" in text and parse_yaml(text)["advantage"]["zero_variance"] == "refill"
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return False


def _mean(runs: Runs, metric: str) -> float | None:
    by_seed = values(runs, metric)
    return sum(by_seed.values()) / len(by_seed) if by_seed else None


def _provenance(entry: Entry) -> list[str]:
    sweep, scale = entry.request.sweep, entry.request.scale
    if sweep.gate_report:
        return [_groups_note(entry), *hashes_note(entry.groups.hashes if entry.groups else {})]
    reasons: dict[str, list[str]] = {}
    for name in entry.rows:
        if cannot := job_of(entry.request, name, sweep.seeds[0]).cannot:
            reasons.setdefault(cannot, []).append(name)
    notes = [f"Not run at scale={scale}: {', '.join(rows)} ({reason})." for reason, rows in reasons.items()]
    for place, names in entry.kept.items():
        commits = sorted({run.result.commit[:12] for name in names for run in entry.rows[name].values()})
        code = f"made with the code of {' and '.join(commits)}"
        notes.append(f"Rows whose runs are in {place}/, {code}: {', '.join(names)}.")
    if base := [name for name in untrained(entry.request, entry.rows) if len(entry.rows[name]) > 1]:
        notes.append(f"These rows have no training, so all seeds have equal results: {', '.join(sorted(base))}.")
    hashes = {row: runs[min(runs)].result.config_hash for row, runs in entry.rows.items() if runs}
    return [*notes, *hashes_note(hashes)]


def _changed_notes(changed: Iterable[Changed]) -> list[str]:
    rows: dict[str, list[Changed]] = {}
    for one in changed:
        rows.setdefault(str(one.folder.parent), []).append(one)
    return [
        f"{folder}: these runs have another configuration hash than row {runs[0].row} has now: "
        + ", ".join(f"seed {one.seed} (`{one.kept or 'none written down'}`, now `{one.now}`)" for one in runs)
        + ". `train.py` with `fresh=true` runs them again."
        for folder, runs in rows.items()
    ]


def _groups_note(entry: Entry) -> str:
    if entry.groups is None:
        return f"No groups are recorded yet; run `python train.py sweep={entry.request.sweep.name}`."
    commits = ", ".join(sorted({result.commit[:12] for result in entry.groups.results}))
    number, commands = entry.groups.report["groups"], "; ".join(entry.groups.commands)
    return f"Computed from {number} recorded groups of rollouts (commit {commits}) with: {commands}."
