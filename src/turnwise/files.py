"""Writes files atomically, parses untrusted JSON and YAML, and turns operating-system
errors into clear messages.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from turnwise.errors import InputError

# ending of a file that is still being written; if a killed process left such a file behind, it may be deleted
PART = ".part"

_REMEDY = {
    errno.ENOSPC: "no space left on this disk; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would be larger than this process may write; raise the limit (ulimit -f)",
}
_OUT_OF_REACH = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR}


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the folder of ``path``, to which the caller writes in a ``with`` block and which then
    replaces the file ``path``: it is always the old file or the complete new one, even if the process is killed or the
    disk is full. The ``filename`` of an OSError is ``path``.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with writing(path):
            if path.exists() and not path.is_file():
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            with part.open("rb") as stream:
                os.fsync(stream.fileno())  # some file systems only report here that they are full
            part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def expanded(path: str | Path) -> Path:
    """Returns a path with the home folder in place of ``~``; unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def written(files: Iterable[Path]) -> tuple[tuple[Path, int, int, int], ...]:
    """The key of a cache: it changes when one of the files is written again."""
    stats = [(file, file.stat()) for file in files]
    return tuple((file, stat.st_ino, stat.st_mtime_ns, stat.st_size) for file, stat in stats)


def refuse_same(out: Path, read: Iterable[Path]) -> None:
    """Raises an InputError if the output file ``out`` is also an input file."""
    if out.exists() and any(path.exists() and out.samefile(path) for path in read):
        raise InputError(f"{out}: this is an input file and must not be overwritten; name another output file")


def read_yaml(path: Path) -> Any:
    return parse_yaml(path.read_bytes())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Sets the file name of every operating-system error that is raised in the ``with`` block to ``path``. Libraries in Rust
    raise other exceptions, whose text has the error's number; these are replaced by an OSError.
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
    """One line with the remedy if the error means that a disk is full, or that a quota or file size limit is reached;
    else None. It names the file of the error, or else ``folder``.
    """
    remedy = _REMEDY.get(error.errno or 0)
    again = "and run the same command again; a run of train.py then resumes"
    return remedy and f"{error.filename or folder}: {remedy} {again}"


def out_of_reach(error: OSError) -> str | None:
    """One line if the error means that its path cannot be used, for example because of permissions; else None."""
    if error.errno not in _OUT_OF_REACH or not error.filename:
        return None
    return f"{error.filename}: {os.strerror(error.errno or 0)}; correct this, or name another path"


# -- JSON and YAML -----------------------------------------------------------------------------------------------------


class TwiceError(ValueError):
    """Raised if a JSON object has a key twice. Python's JSON reader would silently drop the first value."""

    def __init__(self, key: str) -> None:
        super().__init__(f"an object names the key {key!r} twice")
        self.key = key


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Converts key-value pairs of a JSON object (``object_pairs_hook``) to a dictionary, or raises a TwiceError."""
    if len(mapping := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise TwiceError(next(name for name in mapping if names.count(name) > 1))
    return mapping


def refuse_constant(constant: str) -> None:
    """For ``parse_constant`` of Python's JSON reader, which accepts NaN and infinities."""
    raise ValueError(f"{constant} is not JSON")


STRICT = json.JSONDecoder(object_pairs_hook=once, parse_constant=refuse_constant)


def parse_json(text: str | bytes) -> Any:
    """Reads an untrusted JSON text. Raises a ValueError if it is not JSON, has a NaN, an infinity or half of a surrogate
    pair, or is nested too deeply.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")  # ``json.loads`` of bytes would accept half of a surrogate pair
        return whole_characters(json.loads(text, parse_constant=refuse_constant))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def whole_characters(value: Any) -> Any:
    """Checks that all strings in a JSON value can be written as UTF-8, or raises a ValueError."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("the JSON value holds half a surrogate pair") from error
    except RecursionError as error:
        raise ValueError("the JSON value is nested too deeply") from error
    return value


def parse_yaml(text: str | bytes) -> Any:
    """Raises a ValueError if the text is not YAML, or holds an impossible value such as a date with month 13."""
    try:
        # libyaml's loader would be faster, but a deeply nested text overflows its stack and kills the process
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"not YAML ({' '.join(str(error).split())})") from error
