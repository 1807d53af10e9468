"""Folders as values."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise_worlds.sandbox import folder_value as trees_module
from turnwise_worlds.sandbox.folder_value import File, Link, Tree, folder_tree, open_folder

_NAME = st.text("ab.-é ", min_size=1, max_size=6).filter(lambda name: name.strip(".") != "")
_ENTRY = st.one_of(
    st.none(), st.builds(File, st.binary(max_size=20), st.booleans()), st.builds(Link, st.text("ab/.", min_size=1))
)


def write_tree(tree: Tree, folder: Path) -> None:
    with open_folder(str(folder)) as place:
        trees_module.write_tree(tree, place)


def read_tree(folder: Path, most_bytes: int, most_entries: int) -> tuple[Tree, bool]:
    with open_folder(str(folder)) as place:
        return trees_module.read_tree(place, most_bytes, most_entries)


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


def test_a_folder_deeper_than_a_path_may_be_long_comes_back(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    (tmp_path / "again").mkdir()
    tree, _ = read_tree(tmp_path, 100, 33)
    assert len(tree) == 33 and max(map(len, tree)) > 6000
    write_tree(tree, tmp_path / "again")
    assert read_tree(tmp_path / "again", 100, 100) == (tree, True)


def test_a_folder_that_is_a_link_is_not_entered(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir(mode=0o777)
    (tmp_path / "work").symlink_to("host")
    with pytest.raises(OSError, match="work"):
        read_tree(tmp_path / "work", 100, 100)


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
    with pytest.raises(ValueError, match="relative path"):
        write_tree(folder_tree({"../../stolen": "x"}), tmp_path)
