"""A file of pivot rows is trained on and profiled, and pass rates in it take the place of the profile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from omegaconf import DictConfig
from tests.integration import bookings

from turnwise.runs.result_file import read_result
from turnwise.training.loop import run


def rows_of(dialogue: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One pivot row for each reply of a dialogue, as NeMo Gym writes them."""
    items: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for place, message in enumerate(dialogue["messages"]):
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": open_calls.pop(0), "output": message["content"]})
            continue
        if message["role"] != "assistant":
            items.append({"role": message["role"], "content": message["content"]})
            continue
        calls = [
            {"type": "function_call", "name": one["function"]["name"], "arguments": _text(one["function"]["arguments"])}
            for one in message.get("tool_calls") or ()
        ]
        action: dict[str, Any] = {"type": "message", "content": message.get("content")}
        if calls:
            action = {"type": "function_call_batch", "calls": calls}
        tools = [{"type": "function", **tool["function"]} for tool in bookings.TOOLS]
        yield {"responses_create_params": {"input": list(items), "tools": tools}, "expected_action": action}
        if message.get("content"):
            items.append({"type": "message", "role": "assistant", "content": message["content"]})
        open_calls = [f"c{place}_{at}" for at, _ in enumerate(calls)]
        items += [call | {"call_id": name} for call, name in zip(calls, open_calls, strict=True)]


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


@pytest.mark.slow
def test_rows_are_trained_on_and_their_pass_rates_are_their_profile(
    composed: Callable[[list[str]], DictConfig], tmp_path: Path
) -> None:
    rows = [row for dialogue in bookings.dialogues(150) for row in rows_of(dialogue)]
    assert len(rows) >= 200
    model = bookings.model_folder("qwen2", tmp_path / "model")

    def play(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
        (tmp_path / name).mkdir()
        file = bookings.write(tmp_path / name / "rows.jsonl", rows)
        overrides = [
            "method=pivotrl",
            f"policy.model={model}",
            f"data.file={file}",
            "data.held_out=0.05",
            f"paths.out={tmp_path / name / 'run'}",
            f"paths.cache={tmp_path / 'cache'}",
            "states.keep=all",
            "states.k=2",
            "rollout.states=4",
            "rollout.trajectories=null",
            "rollout.sampling.max_tokens=8",
            "allocator.group_size=2",
            "eval.tasks=4",
            "eval.attempts=1",
            "eval.items=0",
            "iterations=1",
            "logger.wandb=null",
        ]
        run(composed(overrides))
        assert read_result(tmp_path / name / "run").env == "rows.jsonl"
        return pq.read_table(tmp_path / name / "run" / "profile.parquet").to_pydict()

    first = play("first", rows)
    assert len(rows) * 0.8 < len(first["state_id"]) < len(rows)  # some are held out
    rated = [row | {"pass_rate_total": 4, "pass_rate_passed": place % 5} for place, row in enumerate(rows)]
    second = play("second", rated)
    assert second["state_id"] == first["state_id"] and all(actions == [] for actions in second["actions"])
    passed = [(int(name.partition(":")[2].partition("#")[0]) - 1) % 5 for name in second["state_id"]]
    assert second["mean"] == [count / 4 for count in passed]
