"""Samples of the collection under way, in a file: what a killed start has drawn can be taken from there.

A record is the length of what follows, its CRC-32 and the bytes. The first one says what the others depend on, so that samples of
other weights or of another configuration are never taken for these. Records are only ever added, each call's at once: a kill may
tear the last one, which is then cut off. What the system had not written when a machine lost its power is drawn again.
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

LIMIT = 1 << 30  # bytes of a collection's file, after which it takes no more: the rest would be drawn again
_FORMAT = 1
_RECORD = struct.Struct("<II")  # bytes of what follows, their CRC-32
_SAMPLE = struct.Struct(
    "<QI?"
)  # seed, digest of the history, truncated; then n token ids (int32) and n log-probs (float64)
_TOKEN = 12  # bytes

Key = tuple[int, int]
"""What a draw depends on under given weights: its seed, and the CRC-32 of the history that it continues."""


class Spool:
    """Args:
    path: the file; nobody else writes it.
    of: what decides a run's draws beside the weights: a hash of its configuration.
    limit: bytes that the file may have.
    """

    def __init__(self, path: Path, of: str, limit: int = LIMIT) -> None:
        self.path, self.of, self.limit = path, of, limit
        self._file: FileIO | None = None
        self._size = 0
        self._adding = threading.Lock()  # several collections of one version may keep samples here

    def begin(self, version: int) -> dict[Key, Sample]:
        """What an earlier start has kept under the weights of this version; from now on samples are kept beside it.

        What the file holds of other weights or of another configuration is dropped.

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
        """Keep these too, as far as the limit allows.

        Raises:
            OSError: there is no room; ``filename`` is the file's path, and what it held before is still whole.
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
            raise RuntimeError("nothing is kept before `begin`")
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
    """CRC-32 of token ids, of those that ``before`` is the digest of and then these."""
    return zlib.crc32(array("i", ids), before)


def _record(piece: bytes) -> bytes:
    return _RECORD.pack(len(piece), zlib.crc32(piece)) + piece


def _whole(data: bytes) -> Iterator[bytes]:
    """The records up to the first that is torn or damaged."""
    place = 0
    while place + _RECORD.size <= len(data):
        length, check = _RECORD.unpack_from(data, place)
        place += _RECORD.size
        piece = data[place : place + length]
        if not piece or len(piece) < length or zlib.crc32(piece) != check:  # of nothing, as of zeros, the checksum is 0
            return
        place += length
        yield piece


def _write(key: Key, sample: Sample) -> bytes:
    numbers = array("i", sample.ids).tobytes() + array("d", sample.logprobs).tobytes()
    return _SAMPLE.pack(*key, sample.truncated) + numbers


def _read(piece: bytes) -> tuple[Key, Sample]:
    seed, history, truncated = _SAMPLE.unpack_from(piece)
    count = (len(piece) - _SAMPLE.size) // _TOKEN
    middle = _SAMPLE.size + 4 * count
    ids, logprobs = array("i", piece[_SAMPLE.size : middle]), array("d", piece[middle:])
    return (seed, history), Sample(ids.tolist(), logprobs.tolist(), truncated)
