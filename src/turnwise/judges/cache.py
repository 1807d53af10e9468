"""Stores a model's answers on disk, so that the same question is asked only once.

The answers are in an SQLite file, which several processes can share and which stays intact in crashes.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.errors import InputError

VERSION = 1
BUSY = 30.0  # greatest time in seconds that a write waits for other processes
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY,
    about TEXT NOT NULL,
    value TEXT NOT NULL,
    written REAL NOT NULL
) WITHOUT ROWID
"""


class CacheError(OSError):
    """Raised if the cache cannot be read or written at the moment: the disk is full, or another process locks the file.

    If an answer could not be stored, the answer itself is still valid.
    """


def key_of(question: Mapping[str, Any]) -> str:
    """Returns the cache key of a question: the SHA-256 hash of the question as canonical JSON."""
    text = json.dumps(question, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """A persistent mapping from the keys of questions to answers (JSON objects).

    Each entry is one transaction in write-ahead mode. So a killed process leaves no partial entry, and a power failure
    loses at most the last entries. Only the first answer to a question is stored, and ``put`` returns the stored
    answer. So processes that ask the same question at the same time use the same answer. The file must be on a local
    disk, because write-ahead mode does not work on network file systems.

    Args:
        path: path of the SQLite file, which is created if it does not exist.

    Raises:
        InputError: the file is not such a cache, or cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.path, BUSY, isolation_level=None, check_same_thread=False)
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise InputError(
                f"{self.path}: cannot be used as a cache ({error}); remove the file or name another one"
            ) from error

    def get(self, key: str) -> dict[str, Any] | None:
        """Returns the stored answer for a key, or None if no answer is stored.

        Raises:
            CacheError: the cache cannot be read at this moment.
        """
        row = self._row("SELECT value FROM answers WHERE key = ?", key)
        return json.loads(row[0]) if row else None

    def put(self, key: str, about: str, value: Mapping[str, Any]) -> dict[str, Any]:
        """Stores an answer unless the key already has one, and returns the stored answer.

        Args:
            key: the question's key, from :func:`key_of`.
            about: the model's name and a version; this text is only for people who inspect the file.
            value: the answer.

        Raises:
            CacheError: the cache cannot be written at this moment.
        """
        text = json.dumps(value, allow_nan=False)
        with self._lock:
            try:
                self._connection.execute(
                    "INSERT INTO answers VALUES (?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
                    (key, about, text, time.time()),
                )
                row = self._connection.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
            except sqlite3.Error as error:
                raise CacheError(f"{self.path}: {error}") from error
        return json.loads(row[0])

    def __len__(self) -> int:
        return int(self._row("SELECT COUNT(*) FROM answers")[0])

    def _row(self, statement: str, *values: str) -> Any:
        """Returns the first row of an SQL query, or None.

        Raises:
            CacheError: the cache cannot be read at this moment.
        """
        with self._lock:
            try:
                return self._connection.execute(statement, values).fetchone()
            except sqlite3.Error as error:
                raise CacheError(f"{self.path}: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _prepare(self) -> None:
        run = self._connection.execute
        self._patiently("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        self._patiently("BEGIN IMMEDIATE")
        version = run("PRAGMA user_version").fetchone()[0]
        tables = {row[0] for row in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version not in (0, VERSION) or (version == 0 and tables):
            raise sqlite3.DatabaseError(f"the file belongs to another program, or has version {version}, not {VERSION}")
        run(_TABLE)
        run(f"PRAGMA user_version = {VERSION}")
        run("COMMIT")

    def _patiently(self, statement: str) -> None:
        """Runs an SQL statement, with retries. SQLite may refuse it at once while another process creates the file."""
        deadline = time.monotonic() + BUSY
        while True:
            try:
                self._connection.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
