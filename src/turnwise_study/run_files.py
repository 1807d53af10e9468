"""Reads the folder of a run for its report: metrics, profile, rollout trees and transcripts, as far as they exist."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import escape

from turnwise.files import parse_yaml
from turnwise.runs.archive import RunPath, json_object
from turnwise.runs.result_file import Result, ResultError, Status, read_result, read_status

REPLY = "reply"


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of all demonstrated turns: rewards of the actions that the policy sampled at each turn."""

    mean: np.ndarray  # (states,) mean reward
    variance: np.ndarray  # (states,) population variance of the rewards
    kept: np.ndarray  # (states,) bool: whether PivotRL's filter kept the turn
    samples: int  # number of sampled actions at each state

    @property
    def mixed(self) -> np.ndarray:
        """(states,) bool: whether the rewards at a turn differ. Turns with equal rewards give no gradient."""
        return self.variance > 1e-12


@dataclass(frozen=True, slots=True)
class SampledLines:
    shown: list[dict[str, Any]]  # the JSON lines that were kept
    total: int  # number of all lines of the files


@dataclass(frozen=True, slots=True)
class Pair:
    """Two episodes of one task, one before and one after training, with equal decoding mode and attempt number. With
    own dialogues, two replies of the policy at one turn: ``split`` is then ``reply``.
    """

    split: str
    task: str
    mode: str
    base: dict[str, Any]
    after: dict[str, Any]

    @property
    def kind(self) -> str:
        """Which of the two episodes solved the task: ``solved`` (only the one after training), ``lost`` (only the one
        before training), ``kept`` (both) or ``failed`` (none).
        """
        return {(0, 1): "solved", (1, 0): "lost", (1, 1): "kept", (0, 0): "failed"}[
            bool(self.base["success"]), bool(self.after["success"])
        ]


@dataclass(slots=True)
class ReportedRun:
    """All data of one run folder that a report shows."""

    folder: Path
    result: Result | None = None
    status: Status | None = None  # status of a run that has no result yet
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    metrics: dict[str, dict[int, float]] = field(default_factory=dict)  # key -> iteration -> value
    profile: Profile | None = None
    rollouts: SampledLines = field(default_factory=lambda: SampledLines([], 0))
    pairs: dict[str, int] = field(default_factory=dict)  # :attr:`Pair.kind` -> number of pairs of episodes
    pair_mode: str = "greedy episodes"  # what the pairs are
    episodes: list[Pair] = field(default_factory=list)  # the pairs whose transcripts the report shows
    notes: list[str] = field(default_factory=list)
    # warnings logged during training, each with its likely cause
    warnings: list[str] = field(default_factory=list)

    def series(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """The sorted iterations and the values of a metric, both (n,); both empty if it was not logged."""
        points = sorted(self.metrics.get(key, {}).items())
        return np.array([i for i, _ in points], dtype=int), np.array([v for _, v in points], dtype=float)


def read_run(folder: Path | str, *, trees: int = 24, episodes: int = 12) -> ReportedRun:
    """Reads a run folder. At most ``trees`` rollout trees and about ``episodes`` pairs of episodes are kept with their
    transcripts.
    """
    folder = RunPath(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: this folder does not exist; give the folder of a run")
    run = ReportedRun(folder)
    try:
        run.result = read_result(folder)
    except ResultError as error:
        run.status = read_status(folder)
        if run.status is None or (folder / "result.json").exists():
            run.notes.append(
                str(error).replace(f"{folder}/", "")
            )  # a page may be passed on, so it must not show paths of this machine
    run.config_text, run.config = _config(folder / "config.yaml", run.notes)
    for _, row in _json_lines(folder / "metrics.jsonl", run.notes):
        iteration = row.get("iteration")
        if not isinstance(iteration, int):
            continue
        for key, value in row.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
                run.metrics.setdefault(key, {})[iteration] = float(value)  # a later line replaces an earlier one
    told = _json_lines(folder / "warnings.jsonl", run.notes)  # this file also exists for a run without a result
    run.warnings = [str(row["text"]) for _, row in told if "text" in row]
    run.profile = _profile(folder / "profile.parquet", run.notes)
    run.rollouts = _rollouts(sorted((folder / "rollouts").glob("*.jsonl")), trees, run.notes)
    run.pairs, run.episodes = _pairs(folder / "evaluation", episodes, run.notes)
    if run.episodes:
        first = run.episodes[0]
        run.pair_mode = "greedy replies" if first.split == REPLY else f"{first.mode} episodes"
    return run


def _config(path: Path, notes: list[str]) -> tuple[str, dict[str, Any]]:
    if not path.is_file():
        notes.append(f"{path.name}: no configuration was saved.")
        return "", {}
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        config = parse_yaml(text)
    except ValueError as error:
        notes.append(f"{path.name}: {error}.")
        return text, {}
    return text, config if isinstance(config, dict) else {}


def _json_lines(path: Path, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    if not path.is_file():
        return
    torn, offset = 0, 0
    with path.open("rb") as stream:
        for line in stream:
            row = json_object(line)
            if row is not None:
                yield offset, row
            torn += row is None and bool(line.strip())
            offset += len(line)
    if torn:
        notes.append(
            f"{path.name}: {torn} unreadable line{'s' * (torn > 1)} left out; an interrupted run may write such a line."
        )


def _profile(path: Path, notes: list[str]) -> Profile | None:
    if not path.is_file():
        return None
    import pyarrow.parquet as pq  # slow to import, and only runs with a profile have such a file

    try:
        with pq.ParquetFile(path) as file:
            table = file.read(columns=["mean", "variance", "kept"])
            first = next(file.iter_batches(64, columns=["rewards"])) if table.num_rows else None
    except (OSError, ValueError, KeyError) as error:
        notes.append(f"{path.name}: this file cannot be read, so the report shows no profile ({error}).")
        return None
    if first is None:
        return None
    mean, variance, kept = (table[name].to_numpy() for name in ("mean", "variance", "kept"))
    return Profile(mean, variance, kept.astype(bool), max(len(r.as_py() or ()) for r in first["rewards"]))


def _rollouts(paths: list[Path], trees: int, notes: list[str]) -> SampledLines:
    counts = line_counts(paths)
    return SampledLines(list(spaced_trees(counts, trees, notes)), sum(counts.values()))


def line_counts(paths: Sequence[Path]) -> dict[Path, int]:
    counts = {}
    for path in paths:
        with path.open("rb") as stream:
            counts[path] = sum(1 for _ in stream)
    return counts


def spaced_trees(counts: Mapping[Path, int], most: int, notes: list[str]) -> Iterator[dict[str, Any]]:
    """Yields at most ``most`` recorded rollout trees, evenly spaced over all files. Other lines are not parsed."""
    wanted = set(_spread(sum(counts.values()), most))
    start = 0
    for path, count in counts.items():
        if wanted.isdisjoint(range(start, start + count)):
            start += count
            continue
        with path.open("rb") as stream:
            for index, line in enumerate(stream, start):
                row = json_object(line) if index in wanted else None
                if row is not None and isinstance(row.get("turns"), list) and isinstance(row.get("state"), dict):
                    yield row
                elif index in wanted:
                    notes.append(f"{path.name}: line {index - start + 1} is unreadable and left out.")
        start += count


def _pairs(folder: Path, episodes: int, notes: list[str]) -> tuple[dict[str, int], list[Pair]]:
    """Returns :attr:`Pair.kind` -> number of pairs of episodes, and a few pairs of each kind with their transcripts.
    Sampled episodes are used only if there are no greedy episodes, and no episodes if there are replies.
    """
    sides: list[Mapping[tuple[Any, ...], tuple[int, bool]]] = []
    for name in ("base", "after"):
        rows: dict[tuple[Any, ...], tuple[int, bool]] = {}
        for offset, row in _json_lines(folder / f"{name}.jsonl", notes):
            row = _episode(row)
            if {"split", "task", "success"} <= row.keys():
                attempt = str(row.get("attempt", 0))
                key = (row.get("mode", "greedy") != "greedy", str(row["split"]), str(row["task"]), attempt)
                rows[key] = (offset, bool(row["success"]))
        sides.append(rows)
    base, after = sides
    keys = sorted(base.keys() & after.keys(), key=repr)
    replies = [key for key in keys if key[1] == REPLY]
    greedy = replies or [key for key in keys if not key[0]] or keys
    by_kind: dict[str, list[tuple[Any, ...]]] = {"solved": [], "lost": [], "kept": [], "failed": []}
    for key in greedy:
        kind = Pair("", "", "", {"success": base[key][1]}, {"success": after[key][1]}).kind
        by_kind[kind].append(key)
    most = 4 * episodes if replies else episodes  # a reply is short
    shares = {"solved": 3, "lost": 3, "failed": 2, "kept": 1}  # pairs whose outcome changed get a larger share
    shown = []
    for kind, share in shares.items():
        for at in _spread(len(by_kind[kind]), max(1, most * share // sum(shares.values()))):
            key = by_kind[kind][at]
            before, now = (
                _episode(_line_at(folder / f"{n}.jsonl", side[key][0]))
                for n, side in (("base", base), ("after", after))
            )
            shown.append(Pair(key[1], key[2], "sampled" if key[0] else "greedy", before, now))
    return {kind: len(found) for kind, found in by_kind.items() if greedy}, shown


def _episode(row: dict[str, Any]) -> dict[str, Any]:
    """Returns ``row``, or for a held-out reply, what an episode would have: the demonstrated reply, then the policy's."""
    if not {"reply", "greedy", "expert", "said"} <= row.keys():
        return row
    said = [("demonstrated", row["expert"]), ("assistant", row["said"])]
    messages = [{"role": role, "content": content} for role, content in said]
    return {"split": REPLY, "task": row["reply"], "success": bool(row["greedy"][0][0]), "messages": messages}


def _spread(total: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, total - 1, min(most, total)).astype(int)).tolist() if total else []


def _line_at(path: Path, offset: int) -> dict[str, Any]:
    with path.open("rb") as stream:
        stream.seek(offset)
        return json.loads(stream.readline())


MESSAGE_LIMIT = 1_600  # largest number of characters of one message
GOAL_LIMIT = 300
BUDGET = 900_000  # largest number of characters of all trees, and of all transcripts, so that a report stays below 3 MB


@dataclass(slots=True)
class PairView:
    """Two episodes of one task: one before and one after training."""

    title: str
    kind: str
    opening: list[tuple[str, str]]  # messages (role, text) with which both episodes begin
    base: list[tuple[str, str]]
    after: list[tuple[str, str]]


def clip(text: object, limit: int = MESSAGE_LIMIT) -> str:
    """Returns ``text`` with about ``limit`` characters at most. A note replaces the middle of a longer text."""
    text = text if isinstance(text, str) else "" if text is None else str(text)
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[... {len(text) - head - tail:,} characters left out ...]\n{text[-tail:]}"


def pair_views(pairs: Iterable[Pair]) -> list[PairView]:
    """Views of pairs of episodes. The messages with which both episodes of a pair begin are shown only once."""
    views: list[PairView] = []
    spent = 0
    for pair in pairs:
        base, after = (_messages(side.get("messages")) for side in (pair.base, pair.after))
        same = 0
        while same < min(len(base), len(after)) and base[same] == after[same]:
            same += 1
        turns = [side.get("turns", "?") for side in (pair.base, pair.after)]
        title = f"{pair.task} ({pair.split}, {pair.mode}): {turns[0]} turns before, {turns[1]} after"
        if pair.split == REPLY:
            title, same = pair.task, 1  # the demonstrated reply
        view = PairView(title, pair.kind, base[:same], base[same:], after[same:])
        spent += sum(_size(text) + 60 for part in (view.opening, view.base, view.after) for _, text in part)
        if views and spent > BUDGET:
            break
        views.append(view)
    return views


def _messages(messages: object) -> list[tuple[str, str]]:
    if not isinstance(messages, list):
        return []
    return [(str(m.get("role", "?")), clip(m.get("content"))) for m in messages if isinstance(m, dict)]


_GOAL = re.compile(r"^\W*(?:your |the )?(?:task|goal|question|instruction|request)(?: is)?(?: to)?\s*:", re.IGNORECASE)


def goal(messages: Iterable[tuple[str, str]]) -> str:
    """The line of the first user message that states the task's goal ("Your task is to: ..."), or its start."""
    asked = [text for role, text in messages if role == "user"][:1]
    for text in asked:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        named = next((line for line in reversed(lines) if _GOAL.match(line)), None)
        return clip(named or " ".join(lines), GOAL_LIMIT)
    return ""


def fault_of(turn: Mapping[str, Any]) -> str:
    """A sentence on the environment's failure after a turn; empty if the environment did not fail."""
    info = turn.get("info")
    return f"The environment failed: {info['fault']}" if isinstance(info, dict) and info.get("fault") else ""


def _size(text: str) -> int:
    return len(escape(text))
