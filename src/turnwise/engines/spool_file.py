"""Stores the sampled actions of the current batch of rollouts in a file, so that a resumed run need not resample them.

The file consists of records: a length in bytes, a CRC-32, and data of that length. The first record names the weights'
version and the configuration, so that other samples are never used by mistake. If the weights change during a
collection (``VllmEngine.in_flight``), a sample's record names the newer version. An incomplete last record, as after a
kill, is cut off at the next start.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

from turnwise.engines.engine import Sample
from turnwise.files import writing

LIMIT = 1 << 30  # greatest file size in bytes; samples beyond it are not stored and must be sampled again
_FORMAT = 2
_RECORD = struct.Struct("<II")  # number of data bytes that follow, and the CRC-32 of these bytes
# Start of a sample's record: seed, digest of the history, whether the sample is truncated, and version of the weights
# (-1: the version of the file). n token ids (int32) and n log-probs (float64) follow.
_SAMPLE = struct.Struct("<QI?i")
_TOKEN = 12  # bytes per token: 4 for the token id and 8 for the log-prob

Key = tuple[int, int]
"""Identifies a sample among those of one file: its seed, and the CRC-32 of the preceding history."""


class Spool:
    """A file of sampled actions.

    Args:
        path: path of the file; no other process may write to the file.
        of: a hash of the run's configuration, on which the samples depend.
        limit: greatest size of the file in bytes.
    """

    def __init__(self, path: Path, of: str, limit: int = LIMIT) -> None:
        self.path, self.of, self.limit = path, of, limit
        self._file: FileIO | None = None
        self._size = 0
        self._adding = threading.Lock()  # several threads may add samples of one version

    def begin(self, version: int) -> dict[Key, Sample]:
        """Opens the file and returns the samples that it already holds for this version of the weights.

        Samples of other weights or of another configuration are removed from the file.

        Raises:
            OSError: the file cannot be read or written; ``filename`` is its path.
        """
        self.close()
        head = json.dumps({"format": _FORMAT, "of": self.of, "version": version}).encode()
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            self._file = FileIO(descriptor, "r+b")
            found = list(_whole(self._file.readall()))
            kept = found[1:] if found and found[0] == head else []
            self._size = sum(_RECORD.size + len(piece) for piece in (head, *kept)) if kept else 0
            self._file.truncate(self._size)
            self._file.seek(self._size)
        if not kept:
            self._append(_record(head))
        return dict(map(_read, kept))

    def add(self, samples: Iterable[tuple[Key, Sample]]) -> None:
        """Stores samples. If they would exceed the file's size limit, none of them is stored.

        Raises:
            OSError: the disk is full; ``filename`` is the file's path. Earlier records stay intact.
        """
        data = b"".join(_record(_write(key, sample)) for key, sample in samples)
        with self._adding:
            if data and self._size + len(data) <= self.limit:
                self._append(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, data: bytes) -> None:
        if self._file is None:
            raise RuntimeError("the spool is not open: call `begin` before `add`")
        rest = memoryview(data)
        with writing(self.path):
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                with suppress(OSError):
                    self._file.truncate(self._size)
                raise
        self._size += len(data)


def digest(ids: Iterable[int], before: int = 0) -> int:
    """Returns the CRC-32 of token ids. ``before`` is the digest of the tokens that precede them (0: none)."""
    return zlib.crc32(array("i", ids), before)


def _record(piece: bytes) -> bytes:
    return _RECORD.pack(len(piece), zlib.crc32(piece)) + piece


def _whole(data: bytes) -> Iterator[bytes]:
    """Yields the data of each record, up to the first record that is incomplete or damaged."""
    place = 0
    while place + _RECORD.size <= len(data):
        length, check = _RECORD.unpack_from(data, place)
        place += _RECORD.size
        piece = data[place : place + length]
        if not piece or len(piece) < length or zlib.crc32(piece) != check:  # an empty record of zeros passes the CRC
            return
        place += length
        yield piece


def _write(key: Key, sample: Sample) -> bytes:
    numbers = array("i", sample.ids).tobytes() + array("d", sample.logprobs).tobytes()
    return _SAMPLE.pack(*key, sample.truncated, -1 if sample.version is None else sample.version) + numbers


def _read(piece: bytes) -> tuple[Key, Sample]:
    seed, history, truncated, version = _SAMPLE.unpack_from(piece)
    count = (len(piece) - _SAMPLE.size) // _TOKEN
    middle = _SAMPLE.size + 4 * count
    ids, logprobs = array("i", piece[_SAMPLE.size : middle]), array("d", piece[middle:])
    written = None if version < 0 else version
    return (seed, history), Sample(ids.tolist(), logprobs.tolist(), truncated, version=written)
