"""Packs kept runs into archives, one Parquet file for the runs of a paper, and unpacks them for reports.

The archive ``results/pivotrl.runs.parquet`` has a row for each file of the runs in ``results/pivotrl``: its path in that
folder and its content. All files of one name form a row group, because equal and similar contents then compress well.
:func:`opened` unpacks an archive beside itself, into the folder that it stands for, which git ignores.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from turnwise.errors import InputError
from turnwise.files import atomic_write

SUFFIX = ".runs.parquet"  # a run has tables of its own, which are no archives
_STAMP = ".unpacked"  # file in an unpacked folder: size and modification time of the archive
_LEVEL = 22  # of zstd: slow to write, but equally fast to read, and git keeps every version of an archive
_WHOLE = 1 << 30  # bytes of a page and of its dictionary: one page holds a row group, so that it is compressed at once


def opened(place: Path | str) -> Path:
    """Returns ``place`` as a path, after unpacking the archive that stands for one of its parents and those inside it.

    Raises:
        InputError: an archive is damaged, its folder holds something else, or it cannot be written.
    """
    path = Path(place)
    for folder in (path, *path.parents):
        if folder.name and (archive := Path(f"{folder}{SUFFIX}")).is_file():
            _unpack(archive, folder)
    for archive in sorted(path.glob(f"*{SUFFIX}")):
        _unpack(archive, path / archive.name.removesuffix(SUFFIX))
    return path


def _unpack(archive: Path, folder: Path) -> None:
    if _is_unpacked(archive, folder):
        return
    try:
        with folder.with_name(f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes, one unpacks and the others wait
            if not _is_unpacked(archive, folder):
                _replace(archive, folder)
    except OSError as error:
        remedy = f"make {folder.parent} writable, or copy the archive into a folder that is"
        raise InputError(f"{archive}: it cannot be unpacked beside itself ({error}); {remedy}") from error


def _is_unpacked(archive: Path, folder: Path) -> bool:
    stamp = folder / _STAMP
    return stamp.is_file() and stamp.read_text() == _version(archive)


def _version(archive: Path) -> str:
    return f"{(state := archive.stat()).st_size} {state.st_mtime_ns}"


def _replace(archive: Path, folder: Path) -> None:
    if folder.exists() and not (folder / _STAMP).is_file():
        raise InputError(f"{folder}: {archive} stands for this folder; rename the folder or the archive")
    part, old = (folder.with_name(f".{folder.name}.{kind}.tmp") for kind in ("new", "old"))
    for rest in (part, old):  # of a process that was killed here
        shutil.rmtree(rest, ignore_errors=True)
    part.mkdir()
    version, time = _version(archive), archive.stat().st_mtime_ns
    for name, content in _contents(archive).items():
        file = part / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        os.utime(file, ns=(time, time))  # of two runs, reports use the newer one
    (part / _STAMP).write_text(version)
    if folder.exists():
        folder.rename(old)  # at once, because a folder that is only half deleted would have lost its stamp
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _contents(archive: Path) -> dict[str, bytes]:
    import pyarrow.parquet as pq  # slow to import

    try:
        table = pq.read_table(archive)
        names = [PurePosixPath(name) for name in table["path"].to_pylist()]
        if outside := [name for name in names if name.is_absolute() or ".." in name.parts]:
            raise ValueError(f"it holds {outside[0]}, which is a file outside its folder")
        return dict(zip(map(str, names), table["content"].to_pylist(), strict=True))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{archive}: this archive is damaged ({error}); restore it from git") from error


def write_archive(folder: Path, files: Mapping[str, bytes]) -> Path:
    """Adds files to the archive that stands for ``folder``, and returns the archive. A file of the same path replaces
    the former one. Equal files give equal bytes.

    Raises:
        InputError: the existing archive is damaged.
        OSError: the archive cannot be written; the former one is unchanged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(f"{folder}{SUFFIX}")
    whole = {**(_contents(path) if path.exists() else {}), **files}
    schema = pa.schema([("path", pa.string()), ("content", pa.large_binary())])
    sizes = {"data_page_size": _WHOLE, "dictionary_pagesize_limit": _WHOLE, "write_statistics": False}
    with (
        atomic_write(path) as part,
        pq.ParquetWriter(part, schema, compression="zstd", compression_level=_LEVEL, **sizes) as writer,
    ):
        for kind in sorted({PurePosixPath(name).name for name in whole}):
            names = sorted(name for name in whole if PurePosixPath(name).name == kind)
            writer.write_table(pa.table([names, [whole[name] for name in names]], schema=schema))
    return path
