"""Training curves of several runs in the same axes, and whether their tasks are the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from turnwise.reports.comparison_page import comparison_page
from turnwise.reports.find_runs import RunRow, collect
from turnwise.reports.metric_labels import words
from turnwise.reports.overlaid_training_curves import ACCEPTED, SUCCESS, logged, over_seeds, overlays
from turnwise.reports.same_tasks import task_notes
from turnwise.reports.sentences import all_on_dialogues
from turnwise.reports.tables import run_table


def test_curves_are_read_by_name_and_costs_add_up(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"iteration": 0, "phase": "eval", "eval/seen/success": 10.0, "eval/unseen/success": 30.0},
        {"iteration": 0, "phase": "train", "train/reward_mean": 0.5, "cpu/iteration": 2.0},
        {
            "iteration": 1,
            "phase": "train",
            "train/reward_mean": float("inf"),
            "cpu/iteration": 3.0,
            "train/kl_ref": True,
        },
        {"iteration": 2, "phase": "eval", "eval/seen/success_greedy": 44.0},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + '{"iteration": 3, "tor'
    (tmp_path / "metrics.jsonl").write_text(text)
    assert logged(tmp_path) == {
        SUCCESS: {0: 20.0, 2: 44.0},
        words("train/reward_mean"): {0: 0.5},
        "CPU seconds so far": {0: 2.0, 1: 5.0},
    }
    assert logged(tmp_path / "absent") == {}


def test_the_curve_of_a_run_on_dialogues_is_that_of_its_held_out_replies(tmp_path: Path) -> None:
    rows = [
        {"iteration": 0, "phase": "eval", "eval/held_out/functional": 10.0, "eval/held_out/functional_greedy": 1.0},
        {"iteration": 2, "phase": "eval", "eval/held_out/functional_greedy": 44.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert logged(tmp_path) == {ACCEPTED: {0: 10.0, 2: 44.0}}


def test_a_line_is_the_mean_over_seeds_where_all_have_a_number() -> None:
    line = over_seeds([{0: 1.0, 1: 4.0, 2: 9.0}, {0: 3.0, 1: 6.0}])
    assert [(at, mean) for at, mean, *_ in line] == [(0, 2.0), (1, 5.0)]
    assert line[0][2:] == pytest.approx(
        (2 - 12.7062, 2 + 12.7062), abs=1e-3
    )  # t of one degree of freedom, deviation sqrt 2
    assert over_seeds([{0: 1.0}]) == [(0, 1.0, None, None)]


def test_a_seed_that_never_succeeds_counts_and_a_metric_that_is_always_zero_is_not_drawn(tmp_path: Path) -> None:
    for seed, success in ((0, 0.0), (1, 40.0)):
        (tmp_path / str(seed)).mkdir()
        rows = [{"phase": "eval", "iteration": i, "eval/seen/success": success, "train/kl_ref": 0.0} for i in range(2)]
        (tmp_path / str(seed) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figure = overlays([RunRow("grpo", {}, folders={s: tmp_path / str(s) for s in (0, 1)})], "t", "k")
    assert figure is not None and "grpo 20" in figure.alt and "40" not in figure.alt


@pytest.mark.slow
def test_a_comparison_draws_every_curve_with_a_part_for_each_run(make: Any, tmp_path: Path) -> None:
    for name, seeds in (("first", 2), ("second", 1)):
        for seed in range(seeds):
            make.write_run(tmp_path / name / f"seed{seed}", seed=seed, name=name, states=20)
    collection = collect([tmp_path])
    (rows,) = collection.sections.values()
    figure = overlays(rows, "Curves", "curves-0")
    assert figure is not None and figure.narrow
    for text in (SUCCESS, "mean reward", "KL to the reference", "entropy"):
        assert text in figure.svg
    assert 'data-series="first"' in figure.svg and 'data-series="second"' in figure.svg
    assert figure.svg in comparison_page(collection, [], [])
    assert task_notes(collection) == []


def test_other_tasks_and_other_environments_are_told(make: Any, tmp_path: Path) -> None:
    for name, tasks in (("first", 64), ("second", 128)):
        folder = make.write_run(tmp_path / name / "seed0", name=name, states=20)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        config |= {"env": {"horizon": 30}, "eval": {"tasks": tasks, "every": tasks}, "update": {"steps": tasks}}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    collection = collect([tmp_path])
    (note,) = task_notes(collection)
    assert "eval.tasks" in note and "64 in first" in note and "128 in second" in note
    assert not any(key in note for key in ("eval.every", "update.steps", "env.horizon"))
    assert note in comparison_page(collection, [], [])
    result = json.loads((tmp_path / "second" / "seed0" / "result.json").read_text())
    (tmp_path / "second" / "seed0" / "result.json").write_text(json.dumps(result | {"env": "bfcl"}))
    (note,) = task_notes(collect([tmp_path]))
    assert "bfcl" in note and "household" in note


def test_runs_on_dialogues_are_compared_as_replies(make: Any, tmp_path: Path) -> None:
    folder = make.write_run(tmp_path / "own" / "seed0", name="own", states=20)
    result = json.loads((folder / "result.json").read_text())
    change = {key: value for key, value in result["in_domain"].items() if key not in ("by_split", "greedy", "sampled")}
    nll = {"base": 2.0, "after": 1.0, "delta": -1.0}
    replies = {"dialogues": 8, "replies": 40, "nll": nll, "functional": change, "strict": change}
    (folder / "result.json").write_text(json.dumps(result | {"in_domain": change, "held_out": replies}))
    (rows,) = collect([tmp_path]).sections.values()
    assert all_on_dialogues(result for row in rows for result in row.results.values())
    own, played = (
        run_table("own.jsonl", "tiny", of, {}).notes[0]
        for of in (rows, collect([make.write_run(tmp_path / "b" / "seed0", states=20)]).sections["household", "tiny"])
    )
    assert "replies" in own and "tasks" not in own and "tasks" in played and "replies" not in played
    assert words("in_domain.delta", dialogues=True) == f"change of {ACCEPTED.removesuffix(', %')}, points"
    assert words("rollout_turns", dialogues=True) == words("rollout_turns")


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("in_domain.after", "held-out success after training, %"),
        ("in_domain.by_split.unseen.delta", "change of held-out success, unseen, points"),
        ("ood.after.algebra", "algebra after training, %"),
        ("late train/entropy", "entropy, later half"),
        ("rollout_turns / cpu_seconds", "turns played for training, per CPU seconds of training"),
        ("some/unknown_key", "some/unknown_key"),
    ],
)
def test_metrics_in_words(metric: str, said: str) -> None:
    assert words(metric) == said
