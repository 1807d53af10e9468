"""The planner against models that are built, and against counts by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from turnwise.config.schema import compose_config
from turnwise.config.settings import LoraSettings
from turnwise.errors import InputError
from turnwise.models.policy import load_policy
from turnwise.shipped import weights_of
from turnwise_study.planning import GPUS, architecture, plan, shape_of

ROOT = Path(__file__).parents[2]


def planned(*overrides: str, **given: float):
    return plan(compose_config(["method=pivotrl", *overrides], ROOT / "conf"), GPUS["h100"], given)


def test_parameters_are_those_of_the_model_that_a_run_loads() -> None:
    config, _ = architecture("tiny")
    shape = shape_of(config, "float32", LoraSettings(r=4))
    model = load_policy(weights_of("tiny"), "float32", rank=4, alpha=8.0)[0]
    base = {id(p): p for name, p in model.named_parameters() if "lora_" not in name}
    assert shape.weight_bytes == 4 * sum(p.numel() for p in base.values())
    assert shape.trained_bytes == 4 * shape.adapter == 4 * sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_parts_add_up_to_the_peak_and_grow_with_their_causes() -> None:
    one = planned("iterations=4")
    parts = {name: size for name, size in one.memory.items() if name != "peak"}
    passing = max(parts.pop("drawing"), parts.pop("activations"))
    assert one.memory["peak"] == sum(parts.values()) + passing
    assert planned("iterations=0").memory["optimiser"] == 0
    twice = planned("iterations=8")
    assert twice.gpu_hours["sampling"] == pytest.approx(2 * one.gpu_hours["sampling"])
    assert sum(v for k, v in one.gpu_hours.items() if k != "total") == pytest.approx(one.gpu_hours["total"])


def test_tokens_by_hand() -> None:
    one = planned("allocator.group_size=8", "rollout.states=6", reply=20, opening=100, observation=10, episode=5)
    assert [one.tokens[name] for name in ("rollouts", "turns", "sampled")] == [48, 48, 960]
    assert one.lengths.reply == 20 and one.lengths.measured


def test_a_file_of_dialogues_is_evaluated_on_held_out_replies(tmp_path: Path) -> None:
    dialogue = [("user", "hello"), ("assistant", "hi"), ("user", "and now"), ("assistant", "bye")]
    lines = [
        json.dumps({"id": str(i), "messages": [{"role": role, "content": f"{text} {i}"} for role, text in dialogue]})
        for i in range(20)
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    own = f"data.file={tmp_path / 'own.jsonl'}", "eval.items=0", "eval.every=0", "eval.attempts=1", "data.held_out=0.1"
    # before and after: 2 of 20 dialogues with 2 replies of 20 tokens, once greedily and once sampled
    assert planned(*own, reply=20).tokens["evaluated"] == 2 * 2 * 2 * 20 * 2
    assert planned(*own, "eval.environment=true", reply=20).tokens["evaluated"] > 2 * 2 * 2 * 20 * 2


def test_a_file_that_is_there_and_cannot_be_used_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "own.jsonl"
    broken.write_text('{"messages": [')
    with pytest.raises(InputError, match=r"own\.jsonl"):
        planned(f"data.file={broken}")
    assert not planned(f"data.file={tmp_path / 'absent.jsonl'}").lengths.measured


@pytest.mark.slow
def test_every_row_of_a_sweep_is_planned_at_paper_scale() -> None:
    command = [sys.executable, "scripts/plan.py", "sweep=trace_tab1", "scale=paper"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    rows, runs = told["rows"], told["runs"]
    assert rows and all(row["memory"]["peak"] > row["memory"]["weights"] > 0 for row in rows.values())
    assert set(runs) == set(rows) and set(runs.values()) == {6}  # the seeds of the sweep
    total = sum(6 * row["gpu_hours"]["total"] for row in rows.values())
    assert f"({6 * len(rows)}): about {total:,.0f} GPU-hours" in done.stdout
