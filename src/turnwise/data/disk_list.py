"""Stores lists on disk, so that they need only a few bytes of memory for each value."""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar, overload

import numpy as np

from turnwise.files import writing

T = TypeVar("T")

_RECENT = 65536  # number of new names after which the index is sorted again


class DiskList(Sequence[T], Generic[T]):
    """A sequence whose values are pickled in an unnamed file, which disappears when the process ends.

    Each access unpickles the value and returns a new object. Unpickling is safe, because only this process writes the
    file. Forked processes may read the file. ``folder`` holds the file; None: the system's temporary folder. A value
    needs eight bytes of memory.

    Raises:
        OSError: the disk is full; ``filename`` is the folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = Path(folder or tempfile.gettempdir())
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - it lives as long as the list
        self._ends = array("Q", [0])  # the start of the first value, then the byte at which each value ends
        self._written = 0  # number of bytes already in the file; later bytes are still in the buffer

    def append(self, value: T) -> None:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        with writing(self._folder):
            self._file.write(data)
        self._ends.append(self._ends[-1] + len(data))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> T: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[T]: ...
    def __getitem__(self, place: int | slice) -> T | Sequence[T]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        begin, end = self._ends[place], self._ends[place + 1]
        if end > self._written:
            with writing(self._folder):
                self._file.flush()
            self._written = self._ends[-1]
        value: T = pickle.loads(os.pread(self._file.fileno(), end - begin, begin))
        return value


class Names:
    """A list of texts on disk that can find the index of a text. Each text needs 24 bytes of memory.

    A text is found by a digest of 64 bits. Texts with equal digests are read from the disk and compared, so that they
    are not confused.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._names: DiskList[str] = DiskList(folder)
        self._digests, self._places = np.empty(0, np.uint64), np.empty(0, np.int64)  # both sorted by digest
        self._recent: dict[int, list[int]] = {}

    def append(self, name: str) -> None:
        self._recent.setdefault(_digest(name), []).append(len(self._names))
        self._names.append(name)
        if len(self._recent) >= _RECENT:
            self._sort()

    def place(self, name: str) -> int | None:
        """Returns the first index of the text ``name`` in the list, or None if the text was never added."""
        digest = _digest(name)
        wanted = np.uint64(digest)
        begin, end = np.searchsorted(self._digests, wanted), np.searchsorted(self._digests, wanted, "right")
        places = [*self._places[begin:end].tolist(), *self._recent.get(digest, ())]
        return next((place for place in places if self._names[place] == name), None)

    def _sort(self) -> None:
        pairs = [(digest, place) for digest, places in self._recent.items() for place in places]
        digests = np.concatenate([self._digests, np.array([digest for digest, _ in pairs], np.uint64)])
        places = np.concatenate([self._places, np.array([place for _, place in pairs], np.int64)])
        order = np.argsort(digests, kind="stable")  # a stable sort keeps the first index first among equal digests
        self._digests, self._places, self._recent = digests[order], places[order], {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)


def _digest(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
