"""Converts an entry (a table or figure of a paper) to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnwise.reports.claim_verdict import Decision
from turnwise.reports.entries import Entry
from turnwise.reports.preconditions import Finding


def as_json(entry: Entry) -> dict[str, Any]:
    sweep = entry.asked.sweep
    hashes = entry.groups.hashes if entry.groups else {}
    rows = {
        name: {"seeds": sorted(runs), "config_hash": runs[min(runs)].result.config_hash}
        for name, runs in entry.rows.items()
        if runs
    }
    return {
        "sweep": sweep.name,
        "paper": sweep.paper,
        "entry": sweep.entry,
        "scale": entry.asked.scale,
        "verdict": entry.verdict,
        "one_seed": entry.one_seed,
        "claims": [_claim(d) for d in entry.decisions],
        "preconditions": [_precondition(one) for one in entry.findings],
        "rows": rows or {name: {"config_hash": found} for name, found in hashes.items()},
        "changed": [
            {"row": one.row, "seed": one.seed, "folder": str(one.folder), "kept": one.kept, "now": one.now}
            for one in entry.changed
        ],
        "left_out": [note.removeprefix("left out: ") for note in entry.notes],
    }


def _precondition(finding: Finding) -> Mapping[str, Any]:
    bound = finding.bound
    return {
        "precondition": finding.name,
        "says": bound.says,
        "metric": bound.metric,
        "low": bound.low,
        "high": bound.high,
        "paper": bound.paper,
        "value": finding.value,
        "values": list(finding.values),
        "seeds": list(finding.seeds),
        "runs": finding.runs,
        "true": finding.true,
    }


def _claim(decision: Decision) -> dict[str, Any]:
    return {
        "claim": decision.claim.text,
        "metric": decision.metric,
        "ours": decision.claim.ours,
        "one_seed": decision.one_seed,
        **_decided(decision),
        "by_seed": list(decision.by_seed),
        "seeds": list(decision.seeds),
        "seeds_of": {row: list(seeds) for row, seeds in decision.sides.items()},
        "tasks": decision.tasks,
        "why": decision.why,
        "other_decoding": decision.beside and {"metric": decision.beside.metric, **_decided(decision.beside)},
    }


def _decided(decision: Decision) -> dict[str, Any]:
    ends = None if decision.low is None or decision.high is None else [decision.low, decision.high]
    return {"verdict": decision.verdict, "difference": decision.difference, "ci95": ends}
