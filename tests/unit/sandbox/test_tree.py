"""Folders as values."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.sandbox.tree import File, Link, Tree, read_tree, tree_of, usage, write_tree

_NAME = st.text("ab.-é ", min_size=1, max_size=6).filter(lambda name: name.strip(".") != "")
_ENTRY = st.one_of(
    st.none(), st.builds(File, st.binary(max_size=20), st.booleans()), st.builds(Link, st.text("ab/.", min_size=1))
)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree: dict[str, File | Link | None] = {}
    for name in draw(st.sets(_NAME, max_size=4)):
        tree[name] = draw(_ENTRY)
        if tree[name] is None:
            for inner in draw(st.sets(_NAME, max_size=2)):
                tree[f"{name}/{inner}"] = draw(_ENTRY)
    return tree


@settings(max_examples=30, deadline=None)
@given(trees())
def test_what_is_written_is_read(tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tree(tree, Path(folder))
        assert read_tree(Path(folder), 1 << 20, 100) == (tree, True)


def test_texts_get_the_folders_that_they_need() -> None:
    assert dict(tree_of({"a/b/c": "x", "d": ""})) == {"a": None, "a/b": None, "a/b/c": File(b"x"), "d": File(b"")}


def test_every_file_is_of_one_date(tmp_path: Path) -> None:
    write_tree(tree_of({"a/b": "x"}), tmp_path)
    assert {path.stat().st_mtime for path in (tmp_path, tmp_path / "a", tmp_path / "a/b")} == {1_735_689_600}


def test_pipes_and_sockets_are_left_out_and_closed_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "x").write_text("1")
    (tmp_path / "closed" / "x").chmod(0)
    (tmp_path / "closed").chmod(0)
    os.mkfifo(tmp_path / "pipe")
    assert read_tree(tmp_path, 100, 100) == ({"closed": None, "closed/x": File(b"1")}, True)


def test_what_does_not_fit_is_left_out_and_said(tmp_path: Path) -> None:
    write_tree({"a": File(b"12345"), "b": File(b"1"), "c": None}, tmp_path)
    assert read_tree(tmp_path, 5, 10) == ({"a": File(b"12345"), "c": None}, False)
    assert read_tree(tmp_path, 100, 2) == ({"a": File(b"12345"), "b": File(b"1")}, False)
    assert read_tree(tmp_path, 6, 3)[1]


def test_a_folder_deeper_than_a_path_may_be_long(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    tree, _ = read_tree(tmp_path, 100, 100)
    assert 15 < len(tree) <= 33


def test_usage_counts_blocks_and_stops(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    for i in range(20):
        (tmp_path / f"f{i}").touch()
    size, count = usage(tmp_path, 100)
    assert 10_000 <= size <= 20_000 and count == 21
    assert usage(tmp_path, 5)[1] == 6


@pytest.mark.parametrize(
    "tree",
    [
        {"../out": File(b"x")},
        {"/tmp/out": File(b"x")},
        {"a/../../out": File(b"x")},
        {"a//b": File(b"x")},
        {"": None},
        {".": None},
        {"a\0b": File(b"x")},
        {"inside": File(b"1"), "a": Link("../.."), "a/out": File(b"x")},  # through a link
        {"a/out": File(b"x"), "a": File(b"y")},
    ],
)
def test_no_path_leaves_the_folder(tree: Tree, tmp_path: Path) -> None:
    folder = tmp_path / "below" / "work"
    folder.mkdir(parents=True)
    with pytest.raises(ValueError, match="files: "):
        write_tree(tree, folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["below", "work"]  # nothing was written anywhere


def test_a_tasks_files_stay_in_the_box(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no path inside a folder"):
        write_tree(tree_of({"../../stolen": "x"}), tmp_path)
