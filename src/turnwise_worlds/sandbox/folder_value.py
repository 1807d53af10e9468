"""Reads and writes the content of a folder as a value: a tree of files, links and folders.

Owners and dates of files are not kept. The functions open folders through descriptors and never follow links.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from turnwise.errors import InputError

_TIME = 1_735_689_600  # 2025-01-01, the date of every file, so that listings are the same in every episode
_MOST_MIB, _MOST_ENTRIES = 64, 5000  # maximum size and number of entries of a folder that the user names
_DEPTH = 32  # maximum depth of nested folders
_LIBRARY = ctypes.CDLL(None)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link. The host never follows it."""

    target: str


Tree = Mapping[str, File | Link | None]
"""The content of a folder: relative path, with "/" between its parts -> file, link, or None for a folder, which comes
before its content.
"""


def folder_tree(files: Mapping[str, str]) -> Tree:
    tree: dict[str, File | Link | None] = {}
    for path in sorted(files):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            tree.setdefault("/".join(parts[:depth]), None)
        tree[path] = File(files[path].encode())
    return tree


def laid_over(tree: Tree, over: Tree) -> Tree:
    """Returns ``tree`` with the entries of ``over`` added. A file that replaces a folder removes the folder's content."""
    files = tuple(f"{path}/" for path, entry in over.items() if entry is not None)
    return {path: entry for path, entry in tree.items() if not (files and path.startswith(files))} | dict(over)


def read_folder(path: Path, key: str) -> Tree:
    """Returns the content of a folder of the host, which the configuration key ``key`` names."""
    try:
        with open_folder(str(path.expanduser().resolve())) as folder:
            tree, whole = read_tree(folder, _MOST_MIB << 20, _MOST_ENTRIES)
    except OSError as error:
        raise InputError(f"{key}: {path} is not a readable folder ({error.strerror})") from error
    if not whole:
        raise InputError(
            f"{key}: {path} contains more than {_MOST_MIB} MiB or {_MOST_ENTRIES:,} files; name a smaller folder"
        )
    return tree


@contextmanager
def open_folder(name: str, place: int | None = None) -> Iterator[int]:
    """Yields a descriptor of the folder ``name``, which must not be a link, in the folder with descriptor ``place``."""
    descriptor = os.open(name, _FOLDER, dir_fd=place)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def folder_access_as(owner: int | None) -> Iterator[None]:
    """Gives this thread another user's permissions for files and folders, unless ``owner`` is None."""
    if owner is None:
        yield
        return
    _LIBRARY.setfsgid(owner)  # setfsgid and setfsuid affect only this thread
    _LIBRARY.setfsuid(owner)
    try:
        yield
    finally:
        _LIBRARY.setfsuid(0)
        _LIBRARY.setfsgid(0)


def check_path(path: str) -> str:
    """Returns a path, or raises ``ValueError`` if it leads out of a folder."""
    if any(part in ("", ".", "..") or "\0" in part for part in path.split("/")):
        raise ValueError(f"files: {path!r} must be a relative path without empty parts, '.' or '..'")
    return path


def write_tree(tree: Tree, folder: int) -> None:
    """Writes a tree into an empty folder, which no process may use meanwhile. Raises ``ValueError`` and writes nothing
    if a path leads out of the folder.
    """
    inside: dict[str, list[str]] = {}
    for path in tree:  # a path may come from a model
        above, _, name = check_path(path).rpartition("/")
        if above and tree.get(above, "missing") is not None:
            raise ValueError(f"files: {path!r} is in {above!r}, which is not a folder")
        inside.setdefault(above, []).append(name)
    _write_folder(tree, folder, "", inside)


def _write_folder(tree: Tree, place: int, path: str, inside: Mapping[str, list[str]]) -> None:
    for name in inside.get(path, ()):
        whole = f"{path}/{name}" if path else name
        entry = tree[whole]
        if entry is None:
            os.mkdir(name, dir_fd=place)
            with open_folder(name, place) as below:
                os.fchmod(below, 0o755)
                _write_folder(tree, below, whole, inside)
        elif isinstance(entry, Link):
            os.symlink(entry.target, name, dir_fd=place)
        else:
            with os.fdopen(os.open(name, _NEW, 0o644, dir_fd=place), "wb") as stream:
                stream.write(entry.content)
                os.fchmod(stream.fileno(), 0o755 if entry.executable else 0o644)
        os.utime(name, (_TIME, _TIME), dir_fd=place, follow_symlinks=False)
    os.utime(place, (_TIME, _TIME))


def read_tree(folder: int, most_bytes: int, most_entries: int) -> tuple[Tree, bool]:
    """Reads a folder to which no process may write any more. Returns the tree, and whether it is whole: else it is cut
    to the limits. Sockets, pipes, devices, names that are not UTF-8, and entries below 32 folders are left out.
    """
    tree: dict[str, File | Link | None] = {}
    whole, size = True, 0
    for place, name, path in _walk_folder(folder, "", 0):
        if len(tree) == most_entries:
            return tree, False
        status = os.stat(name, dir_fd=place, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=place)
            if _utf8(target):
                tree[path] = Link(target)
        elif stat.S_ISDIR(status.st_mode):
            tree[path] = None
        elif stat.S_ISREG(status.st_mode):
            if size + status.st_size > most_bytes:
                whole = False
                continue
            with os.fdopen(_open_entry(name, place, _OLD, 0o600), "rb") as stream:
                content = stream.read()
            size += len(content)
            tree[path] = File(content, bool(status.st_mode & stat.S_IXUSR))
    return tree, whole


def _walk_folder(place: int, path: str, depth: int) -> Iterator[tuple[int, str, str]]:
    with os.scandir(place) as listed:
        entries = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in listed if _utf8(entry.name))
    for name, _ in entries:
        yield place, name, f"{path}{name}"
    for name, folder in entries:
        if folder and depth < _DEPTH:
            below = _open_entry(name, place, _FOLDER, 0o700)
            try:
                yield from _walk_folder(below, f"{path}{name}/", depth + 1)
            finally:
                os.close(below)


def _open_entry(name: str, place: int, how: int, mode: int) -> int:
    """Opens an entry, which must not be a link. If its permissions forbid this, they are first changed to ``mode``."""
    with suppress(PermissionError):
        return os.open(name, how, dir_fd=place)
    there = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
    try:
        os.chmod(f"/proc/self/fd/{there}", mode)  # noqa: PTH101 (pathlib has no shorter form)
    finally:
        os.close(there)
    return os.open(name, how, dir_fd=place)


def _utf8(name: str) -> bool:
    with suppress(UnicodeEncodeError):
        return bool(name.encode()) or not name
    return False
