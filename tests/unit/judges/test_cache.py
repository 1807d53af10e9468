"""Whole entries after a kill, one answer for all processes, and no pickle."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise.judges.cache import Cache, CacheError, key_of

WRITE = """
import sys
from turnwise.judges.cache import Cache, key_of
cache = Cache(sys.argv[1])
n = 0
while True:
    key = key_of({"n": n, "filler": "x" * 1000})
    cache.put(key, "test", {"n": n, "filler": "y" * 3000})
    print(key, n, flush=True)
    n += 1
"""
RACE = """
import sys
from turnwise.judges.cache import Cache, key_of
path, me, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.stdin.readline()
cache = Cache(path)
for n in range(count):
    print(n, cache.put(key_of({"n": n}), me, {"by": me, "n": n})["by"])
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
    assert len(again) == 1


def test_an_address_is_the_content_in_any_order_of_its_keys() -> None:
    assert key_of({"a": 1, "b": {"c": "ü", "d": 2}}) == key_of({"b": {"d": 2, "c": "ü"}, "a": 1})
    different: list[dict[str, Any]] = [{"a": 1}, {"a": 1.5}, {"a": "1"}, {"a": True}, {"a": None}, {"a": [1]}, {"b": 1}]
    assert len({key_of(item) for item in different}) == len(different)


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
        assert len(cache) >= len(told)
        cache.close()
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


def test_processes_that_open_and_write_at_once_agree_on_every_entry(tmp_path: Path) -> None:
    path, count = tmp_path / "cache.sqlite", 150
    writers = [start(RACE, str(path), str(me), str(count)) for me in range(3)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    told = [writer.communicate()[0].splitlines() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert told[0] == told[1] == told[2]
    cache = Cache(path)
    stored = [cache.get(key_of({"n": n})) for n in range(count)]
    assert [f"{n} {entry['by']}" for n, entry in enumerate(stored) if entry] == told[0]
    assert len(cache) == count


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
    with pytest.raises(
        InputError, match=r"cache\.sqlite: cannot be used as a cache .*; remove the file or name another"
    ):
        Cache(path)
    if isinstance(content, bytes):
        assert path.read_bytes() == content
    if content == "other":
        with sqlite3.connect(path) as connection:
            assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
        connection.close()


def test_a_cache_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    Cache(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 9")
    connection.close()
    with pytest.raises(InputError, match="version 9, not 1"):
        Cache(path)


def test_a_full_disk_is_an_error_of_its_own(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache.sqlite")
    cache.put("k", "m", {"score": 0.5})
    cache._connection.execute("PRAGMA max_page_count = 1")  # SQLite's own limit: the same error as no space left
    with pytest.raises(CacheError, match="full"):
        cache.put("large", "m", {"filler": "x" * 500_000})
    assert cache.get("k") == {"score": 0.5}


def test_a_cache_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache.sqlite")
    cache._connection.execute("DROP TABLE answers")
    for read in (lambda: len(cache), lambda: cache.get("k")):
        with pytest.raises(CacheError, match="answers"):
            read()


def test_the_file_holds_text_alone(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache.sqlite")
    cache.put("k", "model rubric", {"score": 0.5})
    rows = cache._connection.execute("SELECT key, about, typeof(value), value FROM answers").fetchall()
    assert rows == [("k", "model rubric", "text", '{"score": 0.5}')]
