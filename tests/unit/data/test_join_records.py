"""scripts/join_records.py as a program: files of several formats become one of JSON lines, or nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from scripts import join_records

from turnwise_worlds.data_files import read_data_file

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:

    def once(*arguments: object) -> tuple[int, str, str]:
        status = join_records.main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return once


def test_records_of_every_format_stand_in_order_as_they_were(run: Run, tmp_path: Path) -> None:
    nested = {"question": "wo liegt Köln?", "context": {"title": ["a", "b"], "sentences": [["x"], []]}, "answer": None}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([nested, nested]), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text(
        '{"problem": "1 + 1", "answer": 2.5}\n\n{"problem": "", "answer": true}\n', encoding="utf-8-sig"
    )
    (tmp_path / "c.json").write_text('[{"deep": [[1], {"k": "v"}]}]')
    (tmp_path / "d.csv").write_text('question,answer\n"one, two",3\n')
    files = [tmp_path / name for name in ("a.parquet", "b.jsonl", "c.json", "d.csv")]
    out = tmp_path / "deep" / "out.jsonl"
    status, said, wrong = run(*files, "--out", out)
    assert (status, wrong) == (0, "") and "6 records of 4 files" in said
    expected = [record for path in files for _, record in read_data_file(path, "x")]
    assert expected[0] == nested and len(expected) == 6
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == expected
    assert [record for _, record in read_data_file(out, "x")] == expected
    assert "Köln" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "broken", ["absent.jsonl", "half.jsonl", "twice.jsonl", "lines.jsonl", "list.json", "text.txt"]
)
def test_a_file_that_cannot_be_read_leaves_what_was_there(run: Run, tmp_path: Path, broken: str) -> None:
    (tmp_path / "good.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "half.jsonl").write_text('{"a": 1}\n{"a"')
    (tmp_path / "twice.jsonl").write_text('{"a": 1, "a": 2}')
    (tmp_path / "lines.jsonl").write_text('[{"a": 1}]')
    (tmp_path / "list.json").write_text("[[1]]")
    (tmp_path / "text.txt").write_text("a")
    out = tmp_path / "out.jsonl"
    out.write_text("before\n")
    status, said, wrong = run(tmp_path / "good.jsonl", tmp_path / broken, "--out", out)
    assert (status, said) == (2, "") and broken in wrong and len(wrong.splitlines()) == 1
    assert out.read_text() == "before\n" and not list(tmp_path.glob(".*"))


def test_a_file_that_is_read_is_not_written_over(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"problem": "1 + 1"}\n')
    (tmp_path / "link").symlink_to(path)
    for out in (path, tmp_path / "link"):
        status, _, wrong = run(path, "--out", out)
        assert status == 2 and str(out) in wrong and path.read_text() == '{"problem": "1 + 1"}\n'
