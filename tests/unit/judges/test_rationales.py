"""The script against a real endpoint: what it writes, and what it asks when it is called again."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnwise.data.trajectories import read_trajectories
from turnwise.data.turns_in_context import steps_of

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
    """Four turns, the last of which has reasoning."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    messages = [
        {"role": "user", "content": "one and two?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Three."},
    ]
    other = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Good day."},
        {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "<think>own</think>Bye."},
    ]
    rows: list[dict[str, Any]] = [{"id": "a", "messages": messages, "tools": [tool]}, {"id": "b", "messages": other}]
    path = tmp_path / "demos.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def because(messages: Any) -> str:
    """What the endpoint says: the last line of the step that it was shown."""
    step = messages[1]["content"].split("<<<BEGIN step ")[1].split("<<<END")[0]
    return f"<think>hm</think> because of {step.splitlines()[-1]}"


def rationales(path: Path) -> list[str | None]:
    return [step.rationale for trajectory in read_trajectories(path).trajectories for step in steps_of(trajectory)]


def test_turns_get_their_rationales_and_only_missing_ones_are_asked_for_again(
    script: ModuleType, judge_server: ModuleType, demos: Path, tmp_path: Path
) -> None:
    into = tmp_path / "reasoned.jsonl"
    with judge_server.serve(lambda body, nth: "404" if "hello" in str(body) else None, because) as server:
        command = [str(demos), "--url", server.url, "--model", "m", "--cache", str(tmp_path / "cache.sqlite")]
        command += ["--into", str(into)]
        assert script.main(command) == 1
        called = 'because of | {"function": {"arguments": {"a": 1, "b": 2}, "name": "add"}, "type": "function"}'
        assert rationales(into) == [called, "because of | Three.", None, "own"]
        shown = next(body["messages"][1]["content"] for body in server.bodies if "Three." in str(body))
        assert "| 3\n<<<END conversation" in shown
        server.fault = lambda body, nth: None
        for _ in range(2):
            assert script.main(command) == 0
            assert rationales(into) == [called, "because of | Three.", "because of | Good day.", "own"]
            assert server.calls == 4
