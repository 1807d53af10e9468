"""Task files of env=mcp, and how an episode's end is judged. Nothing of the package is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnwise.env import demonstrated
from turnwise.errors import InputError
from turnwise_worlds.mcp import McpEnv, Problem

RECORD = {"id": "a", "split": "train", "prompt": "go", "answer": "yes"}


def written(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_file_gives_its_tasks_by_split_in_its_order(tmp_path: Path) -> None:
    records = [RECORD, {**RECORD, "id": "b", "split": "seen"}, {**RECORD, "id": "c", "subset": "x"}]
    env = McpEnv(written(tmp_path / "tasks.jsonl", *records), ["x"])
    assert [(task.id, task.subset) for task in env.tasks("train", 2)] == [("a", ""), ("c", "x")]
    assert env.tasks("seen", 1)[0].data == records[1]
    with pytest.raises(InputError, match="has 1 tasks, but 2 are needed"):
        env.tasks("seen", 2)


def test_a_record_that_cannot_be_judged_is_refused_with_its_line(tmp_path: Path) -> None:
    for wrong in ({**RECORD, "answer": None}, {**RECORD, "answer": ["yes", " ."]}, {**RECORD, "anwser": "no"}):
        with pytest.raises(InputError, match=r"tasks\.jsonl:2"):
            McpEnv(written(tmp_path / "tasks.jsonl", {**RECORD, "id": "b"}, wrong), ["x"])
    file = written(tmp_path / "tasks.jsonl", RECORD)
    for given in ({"file": file}, {"file": file, "command": ["x"], "url": "http://x"}, {"command": ["x"]}):
        with pytest.raises(InputError, match=r"env\.file"):
            McpEnv(**given)
    env = McpEnv(file, ["x"])
    with pytest.raises(InputError, match=r"data\.file"):
        demonstrated(env, env.tasks("train", 1)[0], "good", 0)


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("3", ["3.", "**3**", " 3.0 "], ["-3", "33", "3%", "three", "3 3", ""]),
        ("-0.5", ["(-0.50)"], ["0.5", "5", "-5"]),
        ("1,200", ["1,200."], ["1.2", "1,2,00"]),
        ("10%", ["10%!"], ["10", "-10%"]),
        ("3 boxes", ["3 Boxes!"], ["3"]),
        (["key", "7.5"], ["Key.", "7.50"], ["keys", "key 7.5", "75"]),
        (None, ["whatever"], []),
    ],
)
def test_one_of_the_answers_must_be_given(answer: Any, right: list[str], wrong: list[str]) -> None:
    problem = Problem(id="x", prompt="?", answer=answer, check={"name": "c", "result": "1"})
    assert all(map(problem.answered, right)) and not any(map(problem.answered, wrong))
