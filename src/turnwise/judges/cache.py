"""Stores a model's answers in an SQLite file, so that each question is asked only once."""

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
BUSY = 30.0  # maximum time in seconds that a write waits for other processes
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY,
    about TEXT NOT NULL,
    value TEXT NOT NULL,
    written REAL NOT NULL
) WITHOUT ROWID
"""


class CacheError(OSError):
    """Raised if the cache cannot be read or written now: the disk is full, or another process locks the file."""


def key_of(question: Mapping[str, Any]) -> str:
    """Returns the SHA-256 hash of a question as canonical JSON."""
    text = json.dumps(question, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """A persistent mapping from the keys of questions to answers (JSON objects), which several processes can share.

    Each entry is one transaction in write-ahead mode. So a killed process leaves no partial entry, and a power failure
    loses at most the last entries. The file must be on a local disk, because write-ahead mode does not work on network
    file systems.

    Args:
        path: path of the SQLite file, which is created if it does not exist.

    Raises:
        InputError: the file belongs to another program or version, or cannot be opened.
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
        """Stores the answer ``value`` unless the key already has an answer. Returns the stored answer.

        So processes that ask a question at the same time all use the first answer. ``about`` is a text for people who
        inspect the file, such as the model's name.

        Raises:
            CacheError: the cache cannot be written at this moment.
        """
        text = json.dumps(value, allow_nan=False)
        statement = "INSERT INTO answers VALUES (?, ?, ?, ?) ON CONFLICT (key) DO NOTHING"
        self._row(statement, key, about, text, time.time())
        return json.loads(self._row("SELECT value FROM answers WHERE key = ?", key)[0])

    def __len__(self) -> int:
        return int(self._row("SELECT COUNT(*) FROM answers")[0])

    def _row(self, statement: str, *values: str | float) -> Any:
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
        """Runs an SQL statement. Repeats it for at most 30 s, because SQLite refuses it at once while another process
        creates the file.
        """
        deadline = time.monotonic() + BUSY
        while True:
            try:
                self._connection.execute(statement)
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
