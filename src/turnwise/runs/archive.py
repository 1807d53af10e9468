"""Reads and writes the JSON-lines files of runs, and archives of kept runs: ``results/pivotrl.runs.parquet`` stands for
the folder ``results/pivotrl``.

An archive is a table with a row for each file: its path in the folder and its content. All files of one name form a row
group, because equal and similar contents then compress well, and a report reads only the groups that it needs. JSON
lines are read and written one at a time, because a long file may not fit into memory.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path, PosixPath, PurePosixPath
from typing import Any

from turnwise.errors import InputError
from turnwise.files import append, atomic_write

SUFFIX = ".runs.parquet"  # a run has tables of its own, which are no archives
_LEVEL = 22  # of zstd: slow to write, but equally fast to read, and git keeps every version of an archive
_WHOLE = 1 << 30  # bytes of a page and of its dictionary: one page holds a row group, so that it is compressed at once


@dataclass(frozen=True)
class Archive:
    """The files of one archive, by their path in the folder that the archive stands for."""

    path: Path
    version: tuple[int, int, int]  # inode, modification time and size of the file when it was opened

    @cached_property
    def files(self) -> dict[str, tuple[int, int]]:
        """Path of a file -> number of its row group, and of its row in this group.

        Raises:
            InputError: the archive is damaged.
        """
        import pyarrow.parquet as pq  # slow to import

        with _readable(self.path), pq.ParquetFile(self.path) as file:
            groups = [file.read_row_group(group, ["path"])["path"] for group in range(file.num_row_groups)]
        return {name: (group, row) for group, names in enumerate(groups) for row, name in enumerate(names.to_pylist())}

    @cached_property
    def folders(self) -> set[str]:
        return {str(folder) for name in self.files for folder in PurePosixPath(name).parents}

    def read(self, name: str) -> bytes:
        group, row = self.files[name]
        content: bytes = _contents(self.path, self.version, group)[row].as_py()
        return content


@lru_cache(maxsize=64)
def _archive(path: Path, version: tuple[int, int, int]) -> Archive:
    return Archive(path, version)


@lru_cache(maxsize=8)
def _contents(path: Path, version: tuple[int, int, int], group: int) -> Any:
    import pyarrow.parquet as pq

    with _readable(path), pq.ParquetFile(path) as file:
        return file.read_row_group(group, ["content"])["content"]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: this archive is damaged ({error}); restore it from git") from error


class RunPath(PosixPath):
    """A path to runs, which may be in folders or in archives. It reads like any path: ``RunPath("results/pivotrl/tab4")``
    is a folder if it exists on disk, or if ``results/pivotrl.runs.parquet`` has files below ``tab4``.
    """

    def _place(self) -> tuple[Archive, str] | None:
        for folder in (self, *self.parents):
            path = Path(f"{folder}{SUFFIX}")
            if folder.name and path.is_file():
                state = path.stat()
                version = (state.st_ino, state.st_mtime_ns, state.st_size)
                return _archive(path, version), self.relative_to(folder).as_posix()
        return None

    def _archived(self) -> tuple[Archive, str] | None:
        place = None if os.path.lexists(self) else self._place()
        return place if place and (place[1] in place[0].files or place[1] in place[0].folders) else None

    def exists(self, **options: Any) -> bool:
        return self._archived() is not None or super().exists(**options)

    def is_file(self, **options: Any) -> bool:
        place = self._archived()
        return place[1] in place[0].files if place else super().is_file(**options)

    def is_dir(self, **options: Any) -> bool:
        place = self._archived()
        return place[1] in place[0].folders if place else super().is_dir(**options)

    def stat(self, **options: Any) -> os.stat_result:
        place = self._archived()
        return place[0].path.stat() if place else super().stat(**options)

    def read_bytes(self) -> bytes:
        place = self._archived()
        return place[0].read(place[1]) if place and self.is_file() else super().read_bytes()

    def read_text(self, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> str:
        with self.open(encoding=encoding or "utf-8", errors=errors, newline=newline) as stream:
            return str(stream.read())

    def open(self, mode: str = "r", *more: Any, **options: Any) -> Any:
        if mode.strip("rbt") or not (self._archived() and self.is_file()):
            return super().open(mode, *more, **options)
        stream = io.BytesIO(self.read_bytes())
        return stream if "b" in mode else io.TextIOWrapper(stream, options.get("encoding") or "utf-8")

    def iterdir(self) -> Iterator[RunPath]:  # type: ignore[override]
        return self.glob("*")

    def glob(self, pattern: str, **options: Any) -> Iterator[RunPath]:  # type: ignore[override]
        """Yields what the folder has on disk, and then what only an archive has. ``pattern`` is one name."""
        return self._found(Path(self).glob(pattern, **options), pattern, deep=False)

    def rglob(self, pattern: str, **options: Any) -> Iterator[RunPath]:  # type: ignore[override]
        return self._found(Path(self).rglob(pattern, **options), pattern, deep=True)

    def _found(self, on_disk: Iterable[Path], pattern: str, deep: bool) -> Iterator[RunPath]:
        seen = set()
        if Path(self).is_dir():
            for path in on_disk:
                seen.add(str(path))
                yield type(self)(path)
        for path in self._below(deep):
            if fnmatchcase(path.name, pattern) and str(path) not in seen:
                yield path

    def _below(self, deep: bool) -> Iterator[RunPath]:
        roots = [self] if self._place() else []
        if Path(self).is_dir():
            roots += [self / path.name.removesuffix(SUFFIX) for path in sorted(Path(self).glob(f"*{SUFFIX}"))]
        for root in roots:
            if root is not self:
                yield root
            archive, inner = root._place() or (None, "")
            for name in [*sorted(archive.folders), *archive.files] if archive and (deep or root is self) else ():
                path = PurePosixPath(name)
                if path != PurePosixPath(inner) and (inner == "." or path.is_relative_to(inner)):
                    relative = path.relative_to(inner)
                    if deep or len(relative.parts) == 1:
                        yield root / relative


def write_archive(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Adds files to the archive that stands for ``folder``, and returns the archive. A file of the same path replaces
    the former one. Equal files give equal bytes.

    Raises:
        InputError: the existing archive is damaged.
        OSError: the archive cannot be written; the former one is unchanged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = RunPath(folder)._place()
    whole = {name: place[0].read(name) for name in place[0].files} if place else {}
    whole.update(files)
    schema = pa.schema([("path", pa.string()), ("content", pa.large_binary())])
    path = Path(f"{folder}{SUFFIX}")
    with (
        atomic_write(path) as part,
        pq.ParquetWriter(
            part,
            schema,
            compression="zstd",
            compression_level=_LEVEL,
            data_page_size=_WHOLE,
            dictionary_pagesize_limit=_WHOLE,
            write_statistics=False,
        ) as writer,
    ):
        for kind in sorted({PurePosixPath(name).name for name in whole}):
            names = sorted(name for name in whole if PurePosixPath(name).name == kind)
            writer.write_table(pa.table([names, [whole[name] for name in names]], schema=schema))
    return path


# -- JSON lines --------------------------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)


def append_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    append(path, "".join(json.dumps(row) + "\n" for row in rows))


def json_object(line: str | bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def each_line(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the records of a JSON-lines file. Damaged lines are skipped, and one warning gives their number.

    A line is damaged if it is not a JSON object or lacks the key ``iteration``. A damaged last line gets no warning,
    because a killed run may leave its last line incomplete.
    """
    if not path.exists():
        return
    damaged, first, at_end = 0, 0, False  # count of damaged lines, number of the first, whether the last one is damaged
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            row = json_object(line)
            at_end = row is None or "iteration" not in row
            if row is not None and not at_end:
                yield row
            else:
                damaged, first = damaged + 1, first or number
    if damaged > at_end:
        logger.warning("%s: %d damaged lines were skipped; the first of them is line %d", path, damaged - at_end, first)


def text_lines(path: Path) -> Iterator[str]:
    """Yields the lines of ``path``, or nothing if there is no such file.

    Raises:
        InputError: the file cannot be read or decoded.
    """
    if not path.exists():
        return
    try:
        with path.open(encoding="utf-8") as stream:
            yield from stream
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as text ({error}); restore the file") from error


def checked_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields, for each line of a JSON-lines file, its position as ``file:line`` and its record. Blank lines are
    skipped.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object.
    """
    for number, line in enumerate(text_lines(path), 1):
        row = json_object(line)
        if row is not None:
            yield f"{path}:{number}", row
        elif line.strip():
            raise InputError(
                f"{path}:{number}: this line is not a JSON object; remove it if it is incomplete, or repeat the run"
            )


def checked_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a JSON-lines file, like :func:`checked_lines`, but decodes the whole file at once. This is
    faster, but the file must fit into memory.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object.
    """
    if not path.exists():
        return []
    try:
        lines = [line for line in path.read_bytes().decode().split("\n") if line.strip()]
        rows = json.loads(f"[{','.join(lines)}]")
        if len(rows) == len(lines) and all(isinstance(row, dict) for row in rows):
            return rows
    except (OSError, ValueError, RecursionError):
        pass
    return [row for _, row in checked_lines(path)]  # slower, but the error names the line and the problem


def cut_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Removes from a JSON-lines file the records for which ``keep`` returns False, and all damaged lines."""
    if not path.exists():
        return
    with atomic_write(path) as part, part.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in each_line(path) if keep(row))


def paths_of(turns: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Returns, for each leaf of a recorded rollout tree, the indices of the turns from the root to the leaf.

    Raises:
        ValueError: a turn comes before its parent.
    """
    parents = [turn["parent"] for turn in turns]
    if strange := [turn for turn, parent in enumerate(parents) if not parent < turn]:
        raise ValueError(f"turn {strange[0]} comes before its parent")
    paths = []
    for leaf in sorted(set(range(len(turns))) - set(parents)):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    return paths
