"""Task files of env=mcp, and how an episode's end is judged. Nothing of the package is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise_worlds.mcp import Check, McpEnv, Problem

RECORD = {"id": "a", "split": "train", "prompt": "go", "answer": "yes"}


def written(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_file_gives_its_tasks_by_split_in_its_order(tmp_path: Path) -> None:
    records = [RECORD, {**RECORD, "id": "b", "split": "seen"}, {**RECORD, "id": "c", "subset": "x"}]
    env = McpEnv({"s": {"command": ["x"]}}, written(tmp_path / "tasks.jsonl", *records))
    assert [(task.id, task.subset) for task in env.tasks("train", 2)] == [("a", ""), ("c", "x")]
    assert env.tasks("seen", 1)[0].data == {"prompt": "go", "answer": "yes"}
    with pytest.raises(InputError, match="has 1 tasks, but 2 are needed"):
        env.tasks("seen", 2)


def test_answers_are_normalised_and_one_of_several_suffices() -> None:
    problem = Problem(id="x", prompt="?", answer=["key", "7.5"])
    texts = ("The key.", "7.50", "keys", "", "key 7.5", "75", "-7.5", "7.5%")
    assert [problem.answered(text) for text in texts] == [True, True, *[False] * 6]
    anything = Problem(id="x", prompt="?", check={"name": "c", "result": "1"})
    assert anything.answered("whatever")


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("3", ["3.", "**3**", " +3.0 ", "$3"], ["-3", "33", "3%", "three", "3 3"]),
        ("-0.5", ["-.5", "(-0.50)"], ["0.5", "5", "-5"]),
        ("1,200", ["1200", "1200.0"], ["1.2", "1,2,00"]),
        ("10%", ["10 %"], ["10", "-10%"]),
        ("3 boxes", ["3 boxes!"], ["3"]),
    ],
)
def test_numbers_are_compared_as_numbers(answer: str, right: list[str], wrong: list[str]) -> None:
    problem = Problem(id="x", prompt="?", answer=answer)
    assert all(map(problem.answered, right)) and not any(map(problem.answered, wrong))


def test_a_check_compares_json_values_or_words() -> None:
    check = Check(name="c", result='{"a": 1, "b": [2]}')
    assert check.holds('{"b":[2],"a":1.0}') and not check.holds('{"a": 1}') and not check.holds("a 1 b 2")
    assert not Check(name="c", result='{"a": [1]}').holds('{"a": [true]}')
    assert Check(name="c", result="two  words").holds(" two words\n")
    assert not Check(name="c", result="x").holds("[" * 9999)
