"""A work folder as a value: what lies in it, without owners, times and anything that is not a file, a link or a folder."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TIME = 1_735_689_600  # 2025-01-01, the date of every file: listings do not depend on when an episode is played
_DEPTH = 32  # folders within folders
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class File:
    """A regular file."""

    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link; where it leads is never followed outside the sandbox."""

    target: str


Tree = Mapping[str, File | Link | None]
"""Path -> what lies there; None is a folder. Paths are relative, their parts parted by "/", and parents come before children."""


def tree_of(files: Mapping[str, str]) -> Tree:
    """A tree from texts, with the folders that they need."""
    tree: dict[str, File | Link | None] = {}
    for path in sorted(files):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            tree.setdefault("/".join(parts[:depth]), None)
        tree[path] = File(files[path].encode())
    return tree


def write_tree(tree: Tree, folder: Path, owner: int | None = None) -> None:
    """Write a tree into an empty folder; ``owner`` is a user id, where another than ours is to own it.

    Raises:
        ValueError: a path leads out of the folder, or through something that is no folder; nothing is written then.
    """
    for path in tree:
        _check_inside(path, tree)
    folders = []
    for path, entry in tree.items():
        place = folder / path
        if entry is None:
            place.mkdir()
            folders.append(place)
        elif isinstance(entry, Link):
            place.symlink_to(entry.target)
        else:
            place.write_bytes(entry.content)
            place.chmod(0o755 if entry.executable else 0o644)
            os.utime(place, (_TIME, _TIME))
        if owner is not None:
            os.chown(place, owner, owner, follow_symlinks=False)
    for place in [*reversed(folders), folder]:
        os.utime(place, (_TIME, _TIME))
    if owner is not None:
        os.chown(folder, owner, owner)


def _check_inside(path: str, tree: Tree) -> None:
    """This is written by us, outside the sandbox, and paths come from tasks: a data file's, or what a model made."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise ValueError(f"files: {path!r} is no path inside a folder; write it as a/b.txt")
    above = "/".join(parts[:-1])
    if above and tree.get(above, _NOTHING) is not None:
        raise ValueError(f"files: {path!r} lies in {above!r}, which is no folder")


def read_tree(folder: Path, most_bytes: int, most_entries: int) -> tuple[Tree, bool]:
    """What lies in a folder that nothing writes to any more.

    Sockets, pipes, devices and what lies deeper than 32 folders are left out.

    Returns:
        The tree, and whether all of it is there: what would pass ``most_bytes`` or ``most_entries`` is left out.
    """
    tree: dict[str, File | Link | None] = {}
    whole, size = True, 0
    for entry, path in _walk(folder):
        if len(tree) == most_entries:
            return tree, False
        if entry.is_symlink():
            tree[path] = Link(os.readlink(entry.path))  # noqa: PTH115 (a Path would tidy it)
        elif entry.is_dir(follow_symlinks=False):
            tree[path] = None
        elif entry.is_file(follow_symlinks=False):
            found = entry.stat(follow_symlinks=False)
            if size + found.st_size > most_bytes:
                whole = False
                continue
            content = _content(entry.path)
            size += len(content)
            tree[path] = File(content, bool(found.st_mode & stat.S_IXUSR))
    return tree, whole


def usage(folder: Path, most_entries: int) -> tuple[int, int]:
    """Bytes on disk and entries of a folder that may be changing; the count stops above ``most_entries``."""
    size = count = 0
    for entry, _ in _walk(folder):
        count += 1
        if count > most_entries:
            break
        try:
            size += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:  # gone by now
            continue
    return size, count


def _walk(folder: Path) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Entries by name, parents before children. Names that are no UTF-8 are left out."""
    pending = [(str(folder), "", 0)]
    while pending:
        place, path, depth = pending.pop()
        try:
            entries = sorted(os.scandir(place), key=lambda entry: entry.name)
        except PermissionError:
            try:
                Path(place).chmod(0o700)
                entries = sorted(os.scandir(place), key=lambda entry: entry.name)
            except OSError:
                continue
        except OSError:  # gone by now, or a path longer than the system takes
            continue
        inner = []
        for entry in entries:
            try:
                entry.name.encode()
            except UnicodeEncodeError:
                continue
            below = f"{path}/{entry.name}" if path else entry.name
            yield entry, below
            if depth < _DEPTH and entry.is_dir(follow_symlinks=False):
                inner.append((entry.path, below, depth + 1))
        pending += reversed(inner)


def _content(path: str) -> bytes:
    try:
        return _read(path)
    except PermissionError:
        Path(path).chmod(0o600)
        return _read(path)


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read()
