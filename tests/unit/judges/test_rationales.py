"""The script against a real endpoint: what it writes, and what it asks when it is called again."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnwise.data.parse_trajectory import parse_trajectory
from turnwise.data.steps import steps_of
from turnwise.data.trajectories import read_trajectories
from turnwise.judges.rationales import Written, write_reasoned

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_rationales", ROOT / "scripts" / "reference_rationales.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    messages = [
        {"role": "user", "content": "one and two?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Three."},
    ]
    other = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Good day."}]
    rows: list[dict[str, Any]] = [{"id": "a", "messages": messages, "tools": [tool]}, {"id": "b", "messages": other}]
    path = tmp_path / "demos.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def because(messages: Any) -> str:
    """What the endpoint says: the last line of the step that it was shown."""
    step = messages[1]["content"].split("<<<BEGIN step ")[1].split("<<<END")[0]
    return f"<think>hm</think> because of {step.splitlines()[-1]}"


def rows_of(path: Path) -> list[tuple[str, int, str]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["trajectory"], row["turn"], row["rationale"]) for row in rows]


def test_every_turn_gets_its_rationale_and_a_second_call_asks_nothing(
    script: ModuleType, judge_server: ModuleType, demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "demos.rationales.jsonl"
    with judge_server.serve(answer=because) as server:
        command = [str(demos), "--url", server.url, "--model", "m", "--cache", str(tmp_path / "cache.sqlite")]
        assert script.main(command) == 0
        assert rows_of(out) == [
            (
                "a",
                0,
                'because of | {"function": {"arguments": {"a": 1, "b": 2}, "name": "add"}, "type": "function"}',
            ),
            ("a", 1, "because of | Three."),
            ("b", 0, "because of | Good day."),
        ]
        assert "3 of 3 rationales, 0 from the cache; 3000 prompt and 30 completion tokens" in capsys.readouterr().out
        shown = next(body["messages"][1]["content"] for body in server.bodies if "Three." in str(body))
        assert "| 3\n<<<END conversation" in shown
        out.unlink()
        assert script.main(command) == 0
        assert len(rows_of(out)) == 3
        assert server.calls == 3


def test_the_trajectories_get_their_rationales(
    script: ModuleType, judge_server: ModuleType, demos: Path, tmp_path: Path
) -> None:
    into = tmp_path / "reasoned.jsonl"
    with judge_server.serve(answer=because) as server:
        command = [str(demos), "--url", server.url, "--model", "m", "--cache", str(tmp_path / "cache.sqlite")]
        assert script.main([*command, "--into", str(into)]) == 0
    first, second = read_trajectories(into).trajectories
    assert [step.rationale for step in steps_of(first)][1] == "because of | Three."
    assert steps_of(second)[0].rationale == "because of | Good day."
    assert steps_of(second)[0].content == "Good day."


def test_reasoning_that_is_there_is_kept(tmp_path: Path) -> None:
    """Under any key, or at the start of the content."""
    said = [{"reasoning": "kept"}, {"thinking": "kept"}, {"content": "<think>kept</think>b"}, {"reasoning": ""}, {}]
    talk = [
        turn for one in said for turn in ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"} | one)
    ]
    trajectory = parse_trajectory({"id": "t", "messages": talk}, "x:1")
    out = tmp_path / "out.jsonl"
    write_reasoned(out, [trajectory], Written({("t", turn): "new" for turn in range(len(said))}))
    (again,) = read_trajectories(out).trajectories
    assert [step.rationale for step in steps_of(again)] == ["kept"] * 3 + ["new"] * 2
    assert {step.content for step in steps_of(again)} == {"b"}


def test_missing_turns_are_told_and_asked_for_again(
    script: ModuleType, judge_server: ModuleType, demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    with judge_server.serve(lambda body, nth: "404" if "hello" in str(body) else None, because) as server:
        command = [str(demos), "--url", server.url, "--model", "m", "--cache", str(tmp_path / "cache.sqlite")]
        command += ["--out", str(out)]
        assert script.main(command) == 1
        assert [row[:2] for row in rows_of(out)] == [("a", 0), ("a", 1)]
        assert "1 rejected; run the same command again" in capsys.readouterr().err
        server.fault = lambda body, nth: None
        assert script.main(command) == 0
        assert [row[:2] for row in rows_of(out)] == [("a", 0), ("a", 1), ("b", 0)]
        assert server.calls == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({0: "nowhere.jsonl"}, "nowhere.jsonl: no such trajectory file"),
        ({2: "localhost"}, "--url must begin with http://"),
        ({5: "--concurrency", 6: "0"}, "--concurrency must be at least 1"),
    ],
)
def test_what_cannot_be_used_is_one_message(
    changes: dict[int, str], message: str, script: ModuleType, demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(demos), "--url", "http://127.0.0.1:1/v1", "--model", "m", "--max-tokens", "16"]
    for place, value in changes.items():
        command[place] = value
    assert script.main(command) == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--out", "DEMOS"], "demos"),
        (["--into", "DEMOS"], "demos"),
        (["--out", "a.jsonl", "--into", "a.jsonl"], "a.jsonl"),
        (["--into", "a.csv"], "a.csv"),
        (["--key-variable", "sk-1234"], "--key-variable"),
        (["--model", "a\nb"], "--model"),
        *((["--temperature", value], "--temperature") for value in ("nan", "-1")),
        (["--time-limit", "1e999"], "--time-limit"),
        (["--max-tokens", "0"], "--max-tokens"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_asked(
    options: list[str],
    named: str,
    script: ModuleType,
    demos: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(demos.parent)
    before = {path: path.read_bytes() for path in demos.parent.iterdir() if path.is_file()}
    given = [str(demos) if option == "DEMOS" else option for option in options]
    try:
        status = script.main([str(demos), "--url", "http://127.0.0.1:1/v1", "--model", "m", *given])
    except SystemExit as end:  # of argparse
        status = end.code
    assert status == 2 and named in capsys.readouterr().err
    assert {path: path.read_bytes() for path in demos.parent.iterdir() if path.is_file()} == before
