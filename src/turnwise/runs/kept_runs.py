"""Finds finished runs, and copies them as kept runs into the archives of the repository (``results/``).

Tables and figures are computed from kept runs. The copy of the run
``outputs/pivotrl/tab1/pivotrl/seed0`` is in the archive ``results/pivotrl.runs.parquet``::

    tab1/pivotrl/seed0/
        result.json           unchanged
        config.yaml           unchanged
        metrics.jsonl         every row
        evaluation/*.jsonl    every attempt without its text: task, split and success, or item and score
        rollouts/train.jsonl  only if the run recorded every group: the turns, with a checksum in place of each text
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from turnwise.errors import InputError
from turnwise.files import read_yaml
from turnwise.methods.gate import symbol
from turnwise.runs.archive import opened, write_archive
from turnwise.runs.json_lines import checked_lines
from turnwise.runs.result_file import read_result

_OUTCOME = ("split", "task", "mode", "attempt", "subset", "success", "turns", "suite", "item", "score")


def finished(folders: Iterable[Path]) -> Iterator[Path]:
    """Yields the folders of finished runs in and below ``folders``, except renamed folders (``.old-<n>``)."""
    for folder in folders:
        for result in sorted(opened(folder).rglob("result.json")):
            if ".old-" not in result.parent.name:
                yield result.parent


def keep_runs(runs: Iterable[Path], outputs: Path, results: Path) -> tuple[list[Path], list[Exception]]:
    """Copies runs below ``outputs`` into the archives of ``results``, and returns the archives, and an error for each
    run that cannot be kept. A second copy of a run changes no byte.
    """
    folders: dict[str, dict[str, bytes]] = {}
    errors: list[Exception] = []
    for run in runs:
        try:
            first, *rest = run.resolve().relative_to(outputs.resolve()).parts
            copied = {str(PurePosixPath(*rest, name)): content for name, content in kept_files(run).items()}
            folders.setdefault(first, {}).update(copied)
        except (InputError, OSError, ValueError) as error:
            errors.append(error)
    return [write_archive(results / first, files) for first, files in folders.items()], errors


def kept_files(run: Path) -> dict[str, bytes]:
    """Returns the files that are kept of a run, by their path in its folder. An InputError says if the run's code was not
    committed, or if its files are damaged.
    """
    commit = read_result(run).commit
    if not commit or commit.endswith("+"):
        raise InputError(
            f"{run}: the code of this run was not committed (result.json records {commit or 'no commit'}); commit the "
            "code and repeat the run from a clean tree"
        )
    files = {name: (run / name).read_bytes() for name in ("result.json", "config.yaml", "metrics.jsonl")}
    for path in sorted((run / "evaluation").glob("*.jsonl")):
        files[f"evaluation/{path.name}"] = "".join(_outcomes(path)).encode()
    if _recorded_all(run):
        files["rollouts/train.jsonl"] = "".join(_kept_groups(run / "rollouts" / "train.jsonl")).encode()
    return files


def _recorded_all(run: Path) -> bool:
    try:
        rollout = read_yaml(run / "config.yaml").get("rollout") or {}
        return bool(rollout) and rollout.get("recorded", 0) >= rollout.get("states", 1)
    except (AttributeError, TypeError) as error:
        raise InputError(f"{run / 'config.yaml'}: the file is damaged ({error}); restore it from a copy") from error


def _kept_groups(path: Path) -> Iterator[str]:
    for place, row in checked_lines(path):
        try:
            record: dict[str, Any] = {
                name: row[name] for name in ("iteration", "rewards", "stopped", "looks") if name in row
            }
            record["state"] = {
                name: row["state"][name] for name in ("id", "task", "type", "turn") if name in row["state"]
            }
            record["turns"] = [
                {name: turn[name] for name in ("parent", "tokens") if name in turn}
                | {"text": _checksum(symbol(turn["text"])), "observation": _checksum(turn["observation"])}
                for turn in row["turns"]
            ]
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(f"{place}: no recorded rollout tree ({error!r}); repeat the run") from error
        yield json.dumps(record) + "\n"


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _outcomes(path: Path) -> Iterator[str]:
    for _, row in checked_lines(path):
        yield json.dumps({key: row[key] for key in _OUTCOME if key in row}) + "\n"
