"""What a run says at its start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.configuration_files import READ

from turnwise.config.schema import build, compose_config
from turnwise.runs.config_hash import config_hash
from turnwise.training import first_lines
from turnwise.training.first_lines import duration_line, opening_lines

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ([], ["pivotrl", "household", "24 iterations", "96 states", "1,536 rollouts", "one turn"]),
        (["method=grpo"], ["12 iterations", "128 rollouts", "30 turns"]),
        (["method=sft"], ["sft", "24 demonstrations"]),
        (["method=trace"], ["search", "tiny_tools", "128 rollouts"]),
        (["method=trace", "allocator=pcl", "allocator.prompts=16"], ["128 rollouts"]),
        (["data.file=mine.jsonl", "method=local"], ["mine.jsonl"]),
        (["method=grpo", "allocator=treepo"], ["8 states"]),
    ],
)
def test_the_first_lines_name_the_work(overrides: list[str], parts: list[str]) -> None:
    cfg = compose_config(overrides, CONF, read=READ)
    said = "\n".join(opening_lines(cfg, build(cfg, "env")))
    assert all(part in said for part in parts), said


def test_a_file_that_the_method_does_not_read_is_told() -> None:
    cfg = compose_config(["method=grpo", "data.file=mine.jsonl"], CONF, read=READ)
    told = [line for line in opening_lines(cfg, build(cfg, "env")) if "mine.jsonl" in line]
    assert len(told) == 1 and "not read" in told[0] and "method=grpo" in told[0]
    read = compose_config(["method=sft", "data.file=mine.jsonl"], CONF, read=READ)
    assert not any("not read" in line for line in opening_lines(read, build(read, "env")))


def test_a_shipped_predictor_of_another_policy_is_told() -> None:
    def told(*overrides: str) -> bool:
        cfg = compose_config(["method=trace", *overrides], CONF, read=READ)
        return any("predictor=qwen3_0_6b" in line for line in opening_lines(cfg, build(cfg, "env")))

    assert told("policy.model=Qwen/Qwen3-8B")
    assert not told() and not told("policy.model=Qwen/Qwen3-8B", "predictor=qwen3_0_6b")
    assert not told("policy.model=Qwen/Qwen3-8B", "predictor=none", "allocator=uniform")


def test_evaluations_are_told_where_there_are_any() -> None:
    cfg = compose_config([], CONF, read=READ)
    env = build(cfg, "env")
    assert "128 held-out tasks, 3 episodes each" in "\n".join(opening_lines(cfg, env))
    greedy = compose_config(["eval.attempts=0"], CONF, read=READ)
    assert "1 episode each" in "\n".join(opening_lines(greedy, env))
    nothing = ["method=sft", "data.file=mine.jsonl", "data.held_out=0"]
    assert "household" not in "\n".join(opening_lines(compose_config(nothing, CONF, read=READ), env))
    own = compose_config([*nothing, "eval.environment=true"], CONF, read=READ)
    assert any(
        "tasks of env=household" in line and "No dialogue of mine.jsonl" in line for line in opening_lines(own, env)
    )


def test_a_run_whose_time_was_measured_names_it_whatever_its_seed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cfg = compose_config(["method=sft"], CONF, read=READ)
    (tmp_path / first_lines.FILE).write_text(json.dumps({"machine": "two cores", "minutes": {config_hash(cfg): 4.2}}))
    monkeypatch.setattr(first_lines, "files", lambda package: tmp_path)
    other = compose_config(["method=sft", "seed=3"], CONF, read=READ)
    env = build(cfg, "env")
    for known in (cfg, other):
        assert [line for line in opening_lines(known, env) if "4 min" in line and "two cores" in line]
    longer = compose_config(["method=sft", "trainer.max_epochs=48"], CONF, read=READ)
    assert not any("4 min" in line for line in opening_lines(longer, env))


@pytest.mark.parametrize("method", ["sft", "grpo", "pivotrl", "awpo", "trace", "selective"])
def test_the_time_of_each_method_alone_is_known(method: str) -> None:
    """``python benchmarks/by_name.py --ship`` writes them anew where a method's defaults have changed."""
    assert duration_line(compose_config([f"method={method}"], CONF, read=READ)) is not None
