"""Files that are whole or not there, and a full disk that says which file it stopped."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from turnwise.errors import InputError

PART = ".part"  # end of the name of a file that is being written; what a killed process leaves may be deleted

_REMEDY = {
    errno.ENOSPC: "no space left on this disk; free some",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "larger than this process may write; raise the limit (ulimit -f)",
}
_OUT_OF_REACH = {
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "this file system is read-only",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EEXIST: "a file is in the place of a folder",
    errno.EISDIR: "a folder is in the place of a file",
}


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path to write to, which replaces ``path`` when the block ends and is removed if the block fails.

    Whatever happens (a reader, a kill, a full disk), ``path`` is the old file or the new one and never a part of it. The
    temporary file lies beside ``path``, because a file can be renamed in one step only within a file system.

    Raises:
        OSError: it cannot be written; ``filename`` is ``path``.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with writing(path):
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "it is no regular file", str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            with part.open("rb") as stream:
                os.fsync(stream.fileno())  # some file systems find out here that they are full
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def refuse_same(out: Path, read: Iterable[Path]) -> None:
    """Checks that a program does not write over a file that it reads.

    Raises:
        InputError: ``out`` is one of the files.
    """
    if out.exists() and any(path.exists() and out.samefile(path) for path in read):
        raise InputError(f"{out}: this file is read, and would be written over; name another")


def read_yaml(path: Path) -> Any:
    """What a YAML file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: as :func:`parse_yaml`.
    """
    return parse_yaml(path.read_bytes())


def parse_yaml(text: str | bytes) -> Any:
    """What a YAML text holds.

    Raises:
        ValueError: it is no YAML, is nested too deep, or holds a value that cannot be, as a date with a thirteenth month.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not YAML ({' '.join(str(error).split())})") from error


def append(path: Path, text: str) -> None:
    """Add lines to a file, all of them or none.

    A last line that a kill tore off gets its end first, so that it spoils no other.

    Raises:
        OSError: there is no room; ``filename`` is ``path``, which stays as it was.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as stream:
            size = stream.seek(0, os.SEEK_END)
            if size:
                stream.seek(size - 1)
                text = text if stream.read(1) == b"\n" else "\n" + text
            rest = memoryview(text.encode())
            try:
                while rest:
                    rest = rest[stream.write(rest) :]
                os.fsync(stream.fileno())  # no checkpoint may know records that a power cut takes
            except OSError:
                with suppress(OSError):
                    stream.truncate(size)
                raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of the operating system in this block names ``path``, whichever library met it.

    Libraries that are not written in Python report such errors as exceptions of their own; their text holds the number.
    """
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def no_room(error: OSError, folder: str | Path) -> str | None:
    """One line for people if ``error`` says that nothing more can be written: the file and the remedy. None otherwise.

    ``folder`` is named where the error, of a library, names no file.
    """
    remedy = _REMEDY.get(error.errno or 0)
    return remedy and f"{error.filename or folder}: {remedy} and run the same command again: it resumes"


def out_of_reach(error: OSError) -> str | None:
    """One line for people if ``error`` says that a path cannot be used as it was named: the path and why. None otherwise."""
    why = _OUT_OF_REACH.get(error.errno or 0)
    return f"{error.filename}: {why}; correct it, or name another place" if why and error.filename else None
