"""What a finished run leaves behind for good: enough to make every table and figure again, small enough to be shipped.

A kept run is a folder of its own, with the name that the run had::

    results/pivotrl/tab1/pivotrl/seed0/
        result.json            as it was
        config.yaml            as it was
        metrics.jsonl.gz       every row
        evaluation/*.jsonl.gz  every attempt without its text: task, split, success; item, score
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from turnwise.errors import InputError
from turnwise.files import whole
from turnwise.reports.result import read_result

_OUTCOME = ("split", "task", "mode", "attempt", "subset", "success", "turns", "suite", "item", "score")
_ZIPPED = ".gz"


def finished(folders: Iterable[Path]) -> Iterator[Path]:
    """The folders of finished runs among and below ``folders``, in order, without those that were put aside."""
    for folder in folders:
        for result in sorted(folder.rglob("result.json")):
            if not any(".old-" in part for part in result.parts):
                yield result.parent


def keep(run: Path, place: Path) -> int:
    """Write what is worth keeping of ``run`` to ``place``; its bytes.

    Equal contents become equal bytes, so that keeping a run again changes nothing.

    Raises:
        ResultError: the result cannot be read.
        InputError: the run was of code that no commit holds.
    """
    commit = read_result(run).commit or ""
    if not commit or commit.endswith("+"):
        raise InputError(f"{run}: its code is not committed ({commit or 'no commit'}); run it again from a clean tree")
    written = 0
    for name in ("result.json", "config.yaml"):
        written += _write(place / name, (run / name).read_bytes())
    written += _write(place / "metrics.jsonl", _zipped((run / "metrics.jsonl").read_bytes()), _ZIPPED)
    for path in sorted((run / "evaluation").glob("*.jsonl")):
        outcomes = (_outcome(line) for line in path.read_text(encoding="utf-8").splitlines())
        text = "".join(json.dumps(row) + "\n" for row in outcomes)
        written += _write(place / "evaluation" / path.name, _zipped(text.encode()), _ZIPPED)
    return written


def read_lines(path: Path) -> list[str] | None:
    """The lines of ``path``, or of what was kept of it; None where there is neither.

    Raises:
        InputError: what was kept is damaged.
    """
    if path.exists():
        return path.read_text(encoding="utf-8").splitlines()
    kept = path.with_name(path.name + _ZIPPED)
    if not kept.exists():
        return None
    try:
        return gzip.decompress(kept.read_bytes()).decode().splitlines()
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{kept}: cannot be unpacked ({error}); restore the file") from error


def _outcome(line: str) -> dict[str, object]:
    row = json.loads(line)
    return {key: row[key] for key in _OUTCOME if key in row}


def _zipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _write(path: Path, data: bytes, ending: str = "") -> int:
    with whole(path.with_name(path.name + ending)) as part:
        part.write_bytes(data)
    return len(data)
