"""What a disturbed run left behind against what the undisturbed one did."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

# clocks, and counts of this machine's troubles, which are the campaign's doing
OWN = ("time", "seconds/", "cpu/", "rollout/tokens_per_s", "rollout/retries", "engine/", "judge/")
ASKED = ("judge/scored",)  # of the judge: what came of it
RESULT = ("in_domain", "ood", "rollout_turns", "rollout_tokens", "verifier", "config_hash")
RECORDS = {"metrics.jsonl", "rollouts/train.jsonl"}


def faults_of(
    reference: Path, folder: Path, torn: Mapping[str, int] | None = None, near: float = 0.0, killed_workers: int = 0
) -> dict[str, list[str]]:
    """``lost``: what is not there; ``wrong``: what is not the same.

    Args:
        torn: records that the campaign damaged and the run told of: how many may be missing. What is left must be right.
        near: how far numbers may lie apart, as a part of the greater of the two; texts and counts never may.
        killed_workers: that the campaign killed. A rollout whose world was killed is drawn anew, so from the iteration on that
            counts one (``rollout/retries``) another policy may come out: there all must be in its place, once, and add up.
    """
    found: dict[str, list[str]] = {"lost": [], "wrong": []}
    for name in ("adapter/adapter_model.safetensors", "result.json", "report.html", *sorted(RECORDS)):
        if not (folder / name).is_file():
            found["lost"].append(name)
    if found["lost"]:
        return found
    a, b = (load_file(path / "adapter" / "adapter_model.safetensors") for path in (reference, folder))
    first, second = (json.loads((path / "result.json").read_text()) for path in (reference, folder))
    redrawn = [row["iteration"] for row in lines(folder / "metrics.jsonl") if row.get("rollout/retries")]
    if redrawn and killed_workers:
        if a.keys() != b.keys() or not all(weight.isfinite().all() for weight in b.values()):
            found["wrong"].append("weights")
        for name, rows in (("metrics.jsonl", metrics), ("rollouts/train.jsonl", trees)):
            whole, here = ([row for row in rows(path) if row["iteration"] < redrawn[0]] for path in (reference, folder))
            _compare(name, whole, here, 0, near, found)
        _adds_up(reference, folder, first, second, found)
        return found
    if a.keys() != b.keys() or not all(a[name].sub(b[name]).norm() <= near * a[name].norm() for name in a):
        found["wrong"].append("weights")
    found["wrong"] += [f"result.json: {key}" for key in RESULT if not alike(first.get(key), second.get(key), near)]
    for name, rows in (("metrics.jsonl", metrics), ("rollouts/train.jsonl", trees)):
        _compare(name, rows(reference), rows(folder), (torn or {}).get(name, 0), near, found)
    return found


def _adds_up(
    reference: Path, folder: Path, first: dict[str, Any], second: dict[str, Any], found: dict[str, list[str]]
) -> None:
    """Every record once and in order, every rollout of every group there, and the sums those of the parts."""
    whole, here = (lines(path / "metrics.jsonl") for path in (reference, folder))
    if [(row["phase"], row["iteration"]) for row in whole] != [(row["phase"], row["iteration"]) for row in here]:
        found["wrong"].append("metrics.jsonl: other records than those of the reference")
        return
    for one, other in zip(whole, here, strict=True):
        begun = other.get("rollout/trajectories", 0) - other.get("rollout/retries", 0)
        if begun != one.get("rollout/trajectories", 0):
            found["wrong"].append(f"metrics.jsonl: {begun} rollouts at iteration {one['iteration']}")
    last = [row for row in here if row["phase"] == "train"][-1]
    for key in ("turns", "tokens"):
        if second.get(f"rollout_{key}") != last.get(f"rollout/{key}"):
            found["wrong"].append(f"result.json: rollout_{key} are not those of the last iteration")
    if first.get("config_hash") != second.get("config_hash"):
        found["wrong"].append("result.json: config_hash")
    groups = [[(tree["iteration"], tree["state"]["id"]) for tree in trees(path)] for path in (reference, folder)]
    if groups[0] != groups[1]:
        found["wrong"].append("rollouts/train.jsonl: other groups than those of the reference")
    played = [
        sum(r is not None for tree in trees(path) for r in tree["rewards"]["total"]) for path in (reference, folder)
    ]
    if played[0] != played[1] or last["rollout/faults"]:
        found["lost"].append(f"rollouts/train.jsonl: {played[1]} of {played[0]} rollouts have a reward")


def alike(one: Any, other: Any, near: float) -> bool:
    """The same, with numbers that are no counts as near as that."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key], near) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other, [near] * len(one)))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=near, abs_tol=near)
    return bool(one == other)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Rows without what differs between two undisturbed runs."""
    rows = lines(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if k in ASKED or not k.startswith(OWN)} for row in rows]


def trees(folder: Path) -> list[dict[str, Any]]:
    return lines(folder / "rollouts" / "train.jsonl")


def lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _compare(
    name: str,
    whole: list[dict[str, Any]],
    here: list[dict[str, Any]],
    torn: int,
    near: float,
    found: dict[str, list[str]],
) -> None:
    """``torn``: records that may be missing; the others must stand in their order."""
    if near and len(whole) == len(here):  # the last digits of records that are alike are the reference's
        here = [a if alike(a, b, near) else b for a, b in zip(whole, here, strict=True)]
    wanted, there = ([json.dumps(row, sort_keys=True) for row in rows] for rows in (whole, here))
    if len(there) != len(set(there)):
        found["wrong"].append(f"{name}: a record stands there twice")
    if strange := [row for row in there if row not in wanted]:
        found["wrong"].append(f"{name}: {len(strange)} records differ, as {strange[0][:200]}")
    missing = len(set(wanted) - set(there)) - len(set(strange))
    if missing > torn:
        found["lost"].append(f"{name}: {missing} of {len(wanted)} records, of which {torn} were damaged")
    rest = iter(wanted)
    if not strange and not all(row in rest for row in there):
        found["wrong"].append(f"{name}: another order")
