"""Values on disk come back as they were, names are found, and what is held in memory is a few bytes each."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from turnwise.data import disk_list
from turnwise.data.disk_list import DiskList, Names


def handles() -> int:
    """Open files of this process; 0 where there is no way to know."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_values_come_back_in_order_also_between_writes(tmp_path: Path) -> None:
    kept: DiskList[object] = DiskList(tmp_path)
    for value in ("a", (1, 2), {"b": [3.5]}):
        kept.append(value)
    assert [kept[0], kept[-1], kept[1:]] == ["a", {"b": [3.5]}, [(1, 2), {"b": [3.5]}]]
    kept.append(None)
    assert list(kept) == ["a", (1, 2), {"b": [3.5]}, None]
    with pytest.raises(IndexError):
        kept[4]


def test_the_file_has_no_name_and_its_handle_goes_with_the_list(tmp_path: Path) -> None:
    before = handles()
    kept: DiskList[int] = DiskList(tmp_path / "made")
    kept.append(1)
    assert kept[0] == 1 and not list((tmp_path / "made").iterdir())
    del kept
    assert handles() == before


def test_names_are_found_whether_sorted_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_list, "_RECENT", 16)
    names = Names(tmp_path)
    for number in range(100):
        names.append(f"n{number}")
    assert [names.place(f"n{number}") for number in range(100)] == list(range(100))
    assert names.place("n100") is None and list(names) == [f"n{number}" for number in range(100)]


def test_two_names_of_one_digest_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_list, "_digest", len)
    monkeypatch.setattr(disk_list, "_RECENT", 2)
    names = Names(tmp_path)
    for name in ("aa", "bb", "c", "dd", "aa"):
        names.append(name)
    assert [names.place(name) for name in ("aa", "bb", "c", "dd", "ee", "f")] == [0, 1, 2, 3, None, None]


def test_memory_does_not_grow_with_what_the_values_are(tmp_path: Path) -> None:
    kept: DiskList[str] = DiskList(tmp_path)
    names = Names(tmp_path)
    tracemalloc.start()
    try:
        for number in range(3000):
            kept.append("x" * 10_000)
            names.append(f"{'y' * 1000}{number}")
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 1_500_000  # 33 MB went in; names that are not sorted yet take a dictionary's place
