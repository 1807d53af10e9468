"""Generates terminal tasks: a folder with files, and a request that consists of one to three chores (small file tasks).

The task is done when the folder contains the files that the chores require.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from turnwise.envs.environment import Level
from turnwise.types import Task

KINDS = ("create", "copy", "move", "delete", "count", "extract", "edit", "sort")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The words and the ranges of sizes from which the tasks of one level are drawn."""

    folders: tuple[str, ...]
    names: tuple[str, ...]
    words: tuple[str, ...]
    files: tuple[int, int]  # minimum and maximum number of files
    lines: tuple[int, int]  # minimum and maximum number of lines of a file
    chores: tuple[int, int]  # minimum and maximum number of chores


_WORDS = (
    *("apple", "bread", "cup", "desk", "egg", "fork", "glass", "knife", "lamp", "mug"),
    *("pan", "plate", "pot", "soap", "spoon", "towel", "vase", "watch", "pen", "book"),
)
SIZES: Mapping[Level, Sizes] = {
    "tiny": Sizes(("desk", "shelf", "drawer"), ("a", "b", "c", "d", "e", "f"), _WORDS[:10], (3, 4), (2, 3), (1, 2)),
    "full": Sizes(
        ("archive", "docs", "inbox", "logs", "notes", "reports", "src", "tmp"),
        ("alpha", "budget", "draft", "index", "items", "log", "memo", "orders", "plan", "summary", "todo", "users"),
        _WORDS,
        (6, 12),
        (3, 9),
        (2, 3),
    ),
}


def make_task(level: Level, split: str, seed: int, index: int) -> Task:
    """Returns task number ``index`` of a split.

    A hash of a task's content decides its split, so no two splits share a task.
    """
    attempt = 0
    while True:
        data = _draw(SIZES[level], random.Random(f"terminal {level} {split} {seed} {index} {attempt}"))
        if split_of(data) == split:
            chores = f"chores_{len(data['chores'])}"
            return Task("terminal", f"{split}/{level}/{seed}/{index:06d}", split, data, chores)
        attempt += 1


def split_of(data: Mapping[str, Any]) -> str:
    """Returns the split of a task. A hash puts 80% of all tasks into train, 10% into seen and 10% into unseen."""
    share = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).digest()[0]
    return "unseen" if share < 26 else "seen" if share < 52 else "train"


def _draw(sizes: Sizes, rng: random.Random) -> dict[str, Any]:
    """Returns the data of a task: the files and folders at the start, and chores on different files."""
    files: dict[str, str] = {}
    count = rng.randint(*sizes.files)
    names = rng.sample(sizes.names, count)
    words = rng.sample(sizes.words, min(len(sizes.words), count))
    folders = rng.sample(sizes.folders, 2)
    for i, name in enumerate(names):
        lines = [rng.choice(sizes.words) for _ in range(rng.randint(*sizes.lines))]
        mark = words[i % len(words)]
        # the word with which a request describes a file must occur only in this file
        lines = [word if word not in words else mark for word in lines]
        lines[rng.randrange(len(lines))] = mark
        files[f"{rng.choice(folders)}/{name}.txt"] = "\n".join(lines) + "\n"
    targets = list(files)
    rng.shuffle(targets)
    now, chores = dict(files), []
    for target in targets[: rng.randint(*sizes.chores)]:
        kinds = rng.sample(KINDS, len(KINDS))
        chores.append(next(chore for kind in kinds if (chore := _CHORES[kind](target, now, folders, sizes, rng))))
        now = after(chores[-1], now)
    return {"files": files, "folders": sorted(folders), "chores": chores}


def after(chore: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, str]:
    """Returns the files that the folder contains after a chore was done: path -> text."""
    left = {path: text for path, text in files.items() if path not in chore["gone"]}
    return left | chore["want"]


def _mark(path: str, files: Mapping[str, str]) -> str | None:
    """Returns a word that occurs only in the file at ``path``; None if every word of it occurs in another file."""
    others = set(" ".join(text for other, text in files.items() if other != path).split())
    return next((word for word in files[path].split() if word not in others), None)


_Draw = Callable[[str, Mapping[str, str], list[str], Sizes, random.Random], "dict[str, Any] | None"]


def _chore(kind: str, text: str, find: str | None, path: str, **rest: Any) -> dict[str, Any]:
    """Returns the data of a chore.

    Args:
        kind: one of ``KINDS``.
        text: the chore in words.
        find: the word by which the policy finds the chore's file; None if the text gives the file's path.
        path: the path of the chore's file.
        rest: ``want`` (path -> text of the files that must exist after the chore), ``gone`` (paths that must not exist
            after the chore) and ``command`` (the expert's command, in which ``{path}`` stands for the file's path).
    """
    return {"kind": kind, "text": text, "find": find, "path": path, "want": {}, "gone": [], **rest}


def _place(path: str, files: Mapping[str, str], rng: random.Random) -> tuple[str | None, str]:
    """Draws how the request refers to the file at ``path``.

    Returns either (None, path), or (word, ``the file with <word>``) with a word that occurs only in this file.
    """
    word = _mark(path, files)
    if word is None or rng.random() < 0.4:
        return None, path
    return word, f"the file with {word}"


def _create(path: str, files: Mapping[str, str], folders: list[str], sizes: Sizes, rng: random.Random) -> Any:
    fresh = [f"{folder}/{name}.txt" for folder in folders for name in sizes.names]
    place = rng.choice([f for f in fresh if f not in files])
    word = rng.choice(sizes.words)
    command = f"echo {word} > {place}"
    return _chore("create", f"write {word} to {place}", None, place, want={place: f"{word}\n"}, command=command)


def _carry(
    kind: str, command: str, path: str, files: Mapping[str, str], folders: list[str], sizes: Sizes, rng: random.Random
) -> dict[str, Any] | None:
    home, _, name = path.partition("/")
    other = next((f for f in folders if f != home), home)
    place = f"{other}/{name}"
    if place in files:
        return None
    find, said = _place(path, files, rng)
    gone = [path] if kind == "move" else []
    want = {place: files[path]}
    return _chore(
        kind, f"{kind} {said} to {other}", find, path, want=want, gone=gone, command=f"{command} {{path}} {other}"
    )


def _delete(path: str, files: Mapping[str, str], folders: list[str], sizes: Sizes, rng: random.Random) -> Any:
    find, said = _place(path, files, rng)
    return _chore("delete", f"delete {said}", find, path, gone=[path], command="rm {path}")


def _count(path: str, files: Mapping[str, str], folders: list[str], sizes: Sizes, rng: random.Random) -> Any:
    if "count.txt" in files:
        return None
    find, said = _place(path, files, rng)
    want = {"count.txt": f"{files[path].count(chr(10))}\n"}
    return _chore(
        "count",
        f"count the lines of {said} into count.txt",
        find,
        path,
        want=want,
        command="wc -l < {path} > count.txt",
    )


def _extract(path: str, files: Mapping[str, str], folders: list[str], sizes: Sizes, rng: random.Random) -> Any:
    if "found.txt" in files:
        return None
    find, said = _place(path, files, rng)
    word = rng.choice(files[path].split())
    lines = [line for line in files[path].splitlines() if word in line]
    return _chore(
        "extract",
        f"copy the lines with {word} of {said} into found.txt",
        find,
        path,
        want={"found.txt": "".join(f"{line}\n" for line in lines)},
        command=f"grep {word} {{path}} > found.txt",
    )


def _edit(path: str, files: Mapping[str, str], folders: list[str], sizes: Sizes, rng: random.Random) -> Any:
    find, said = _place(path, files, rng)
    words = set(files[path].split())
    old = rng.choice(sorted(words))
    new = rng.choice([word for word in sizes.words if word not in words])
    lines = [new if line == old else line for line in files[path].splitlines()]
    return _chore(
        "edit",
        f"change {old} to {new} in {said}",
        find,
        path,
        want={path: "".join(f"{line}\n" for line in lines)},
        command=f"sed -i s/{old}/{new}/ {{path}}",
    )


def _sort(path: str, files: Mapping[str, str], folders: list[str], sizes: Sizes, rng: random.Random) -> Any:
    lines = files[path].splitlines()
    if "sorted.txt" in files:
        return None
    find, said = _place(path, files, rng)
    want = {"sorted.txt": "".join(f"{line}\n" for line in sorted(lines))}
    return _chore("sort", f"sort {said} into sorted.txt", find, path, want=want, command="sort {path} > sorted.txt")


_CHORES: Mapping[str, _Draw] = {
    "create": _create,
    "copy": partial(_carry, "copy", "cp"),
    "move": partial(_carry, "move", "mv"),
    "delete": _delete,
    "count": _count,
    "extract": _extract,
    "edit": _edit,
    "sort": _sort,
}
