"""What a finished run leaves behind for good: enough for tables and pictures of sweeps, small enough to be shipped.

A kept run is a folder of its own, with the name that the run had::

    results/pivotrl/tab1/pivotrl/seed0/
        result.json            as it was
        config.yaml            as it was
        metrics.jsonl.gz       every row
        evaluation/*.jsonl.gz  every attempt without its text: task, split, success; item, score
        rollouts/train.jsonl.gz  only of a run that recorded every group: its turns, a checksum for each text
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from turnwise.algo.gates.prefixes import symbol
from turnwise.errors import InputError
from turnwise.files import atomic_write, lines_of, read_yaml
from turnwise.runs.result import read_result

_OUTCOME = ("split", "task", "mode", "attempt", "subset", "success", "turns", "suite", "item", "score")
_ZIPPED = ".gz"


def finished(folders: Iterable[Path]) -> Iterator[Path]:
    """The folders of finished runs among and below ``folders``, in order, without those that were put aside."""
    for folder in folders:
        for result in sorted(folder.rglob("result.json")):
            if ".old-" not in result.parent.name:
                yield result.parent


def keep(run: Path, place: Path) -> int:
    """Write what is worth keeping of ``run`` to ``place``, all of it or nothing that counts as a run; its bytes.

    Equal contents become equal bytes, so that keeping a run again changes nothing.

    Raises:
        ResultError: the result cannot be read.
        InputError: the run was of code that no commit holds, or what it left is damaged.
    """
    commit = read_result(run).commit or ""
    if not commit or commit.endswith("+"):
        raise InputError(f"{run}: its code is not committed ({commit or 'no commit'}); run it again from a clean tree")
    files = {"config.yaml": (run / "config.yaml").read_bytes()}
    files["metrics.jsonl" + _ZIPPED] = _zipped((run / "metrics.jsonl").read_bytes())
    for path in sorted((run / "evaluation").glob("*.jsonl")):
        files[f"evaluation/{path.name}{_ZIPPED}"] = _zipped("".join(_outcomes(path)).encode())
    if _recorded_all(run):
        files["rollouts/train.jsonl" + _ZIPPED] = _zipped("".join(_groups(run / "rollouts" / "train.jsonl")).encode())
    files["result.json"] = (run / "result.json").read_bytes()  # last: what has one is a run
    for name, data in files.items():
        with atomic_write(place / name) as part:
            part.write_bytes(data)
    return sum(map(len, files.values()))


def each_line(path: Path) -> Iterator[str]:
    """The lines of ``path``, or of what was kept of it, one at a time; none where there is neither.

    Raises:
        InputError: what was kept is damaged.
    """
    kept = path.with_name(path.name + _ZIPPED)
    if path.exists():
        yield from lines_of(path)
    elif kept.exists():
        try:
            yield from lines_of(kept)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise InputError(f"{kept}: cannot be unpacked ({error}); restore the file") from error


def _recorded_all(run: Path) -> bool:
    """Whether each group that was played is written down, as for the tables that are computed from groups."""
    rollout = read_yaml(run / "config.yaml").get("rollout") or {}
    return bool(rollout) and rollout.get("recorded", 0) >= rollout.get("states", 1)


def _groups(path: Path) -> Iterator[str]:
    """Recorded trees with a checksum in place of each text: enough to tell actions and observations apart."""
    for number, line in enumerate(each_line(path), 1):
        try:
            row = json.loads(line)
            turns = [
                {name: turn[name] for name in ("parent", "tokens") if name in turn}
                | {"text": _checksum(symbol(turn["text"])), "observation": _checksum(turn["observation"])}
                for turn in row["turns"]
            ]
            state = {name: row["state"][name] for name in ("id", "task", "type", "turn") if name in row["state"]}
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InputError(f"{path}:{number}: no recorded tree ({error!r}); run it again") from error
        told = {name: row[name] for name in ("iteration", "rewards", "stopped", "looks") if name in row}
        yield json.dumps({**told, "state": state, "turns": turns}) + "\n"


def _checksum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _outcomes(path: Path) -> Iterator[str]:
    for number, line in enumerate(each_line(path), 1):
        try:
            row = dict(json.loads(line))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path}:{number}: not a JSON object ({error}); run it again") from error
        yield json.dumps({key: row[key] for key in _OUTCOME if key in row}) + "\n"


def _zipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)
