"""Whole entries after a kill, one answer for all processes, and no pickle."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.judges.endpoint import Cache

WRITE = """
import sys
from turnwise.judges.endpoint import Cache, key_of
cache = Cache(sys.argv[1])
n = 0
while True:
    key = key_of({"n": n, "filler": "x" * 1000})
    cache.put(key, "test", {"n": n, "filler": "y" * 3000})
    print(key, n, flush=True)
    n += 1
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_the_first_answer_stands(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "cache.sqlite")
    assert cache.get("k") is None
    assert cache.put("k", "m", {"score": 0.5}) == {"score": 0.5}
    assert cache.put("k", "m", {"score": 1.0}) == {"score": 0.5}
    cache.close()
    again = Cache(tmp_path / "deep" / "cache.sqlite")
    assert again.get("k") == {"score": 0.5}


def test_nothing_that_was_stored_is_lost_to_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    for _ in range(2):  # the second process finds what the first one left
        writer = start(WRITE, str(path))
        assert writer.stdout is not None
        told = [writer.stdout.readline().split() for _ in range(150)]
        os.kill(writer.pid, signal.SIGKILL)
        told += [line.split() for line in writer.stdout.read().splitlines() if line.endswith(tuple("0123456789"))]
        writer.wait()
        writer.stdout.close()
        cache = Cache(path)
        for key, n in told:
            assert cache.get(key) == {"n": int(n), "filler": "y" * 3000}
        cache.close()
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


@pytest.mark.parametrize("content", [b"not a database at all, but longer than a header" * 100, None, "other"])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "cache.sqlite"
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE theirs (a)")
        connection.close()
    with pytest.raises(InputError, match=r"cache\.sqlite"):
        Cache(path)
    if isinstance(content, bytes):
        assert path.read_bytes() == content
    if content == "other":
        with sqlite3.connect(path) as connection:
            assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
        connection.close()
