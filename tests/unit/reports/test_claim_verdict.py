"""Claims on runs, decided by hand-worked intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.runs.result_file import read_result
from turnwise_study.claims import decide, decide_gate, settled
from turnwise_study.runs import RunMetrics
from turnwise_study.sweeps.sweep_file import comparison

SWEEP = """
paper: P
entry: Table 1
title: Table 1 of P
seeds: [0, 1, 2]
columns: {score: in_domain.after}
rows:
  base: {label: Base, overrides: method=sft, numbers: {score: 10.0}}
  ours: {label: Ours, overrides: method=pivotrl, numbers: {score: 20.0}}
  big: {overrides: method=grpo, needs: {tiny: one size is shipped}}
directions:
  in_domain.after: [ours > base, big > ours]
"""


def save(folder: Path, wins: list[int], base: list[int] | None = None, **training: list[float]) -> RunMetrics:
    """A run whose held-out tasks were won ``wins`` times of two."""
    (folder / "evaluation").mkdir(parents=True)
    for name, outcomes in (("base", base or [1] * len(wins)), ("after", wins)):
        rows = [
            {"split": "seen", "task": f"t{task}", "mode": "sampled", "attempt": i, "success": i < won}
            for task, won in enumerate(outcomes)
            for i in range(2)
        ]
        (folder / "evaluation" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    means = [100 * sum(side) / 2 / len(side) for side in (base or [1] * len(wins), wins)]
    result = {"method": "m", "env": "e", "scale": "tiny", "seed": 0, "in_domain": {"base": means[0], "after": means[1]}}
    (folder / "result.json").write_text(json.dumps({**result, "rollout_turns": 100}))
    length = max(map(len, training.values()), default=0)
    lines = [{"phase": "train"} | {f"train/{key}": v[i] for key, v in training.items()} for i in range(length)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [{"phase": "eval"}, *lines]))
    return RunMetrics(folder, read_result(folder))


def save_both(outputs: Path, seeds: Sequence[int] = (0, 1, 2), wins: int = 30) -> None:
    """Runs of the rows ``base``, which win nothing, and ``ours``, which win ``wins`` of 40 tasks."""
    for seed in seeds:
        save(outputs / f"p/tab1/base/seed{seed}", [0] * 40)
        save(outputs / f"p/tab1/ours/seed{seed}", [2] * wins + [0] * (40 - wins))


def said(text: str, metric: str, **rows: dict[int, RunMetrics]):
    return decide(comparison(text, dict.fromkeys(rows)), metric, rows)


def test_a_metric_of_evaluations_is_read_from_their_rows(tmp_path: Path) -> None:
    run = save(tmp_path / "r", [1], reward_std=[0.4, 0.3])
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"phase": "eval", "eval/repeat_rate": rate}) + "\n" for rate in (0.6, 0.2))
    assert run.value("last eval/repeat_rate") == 0.2
    assert run.value("eval/repeat_rate") == pytest.approx(0.4)
    assert run.value("last train/reward_std") == 0.3


def test_values_of_a_run(tmp_path: Path) -> None:
    run = save(tmp_path / "r", [2, 2, 1, 1], reward_std=[0.4, 0.3, 0.2, 0.1])
    assert run.value("in_domain.after") == 75.0
    assert run.value("train/reward_std") == pytest.approx(0.25)
    assert run.value("late train/reward_std") == pytest.approx(0.15)
    assert run.value("spread train/reward_std") == pytest.approx(0.125**0.5 / 10**0.5)  # variance 0.0125
    assert run.value("in_domain.delta / rollout_turns") == pytest.approx(0.25)
    assert run.value("train/nothing") is None
    with pytest.raises(InputError, match="one of late, spread"):
        run.value("early train/reward_std")
    assert run.outcomes("in_domain.after") == {
        "": {"seen/t0": [1, 1], "seen/t1": [1, 1], "seen/t2": [1, 0], "seen/t3": [1, 0]}
    }
    assert run.outcomes("in_domain.greedy.after") is None
    assert run.outcomes("train/reward_std") is None


def test_a_torn_line_is_told(tmp_path: Path) -> None:
    run = save(tmp_path / "r", [1])
    (run.folder / "metrics.jsonl").write_text('{"phase": "train"}\n{"pha')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: "):
        run.value("train/x")


def test_one_seed_is_decided_over_its_tasks(tmp_path: Path) -> None:
    base, ours = save(tmp_path / "a", [0] * 40), save(tmp_path / "b", [2] * 30 + [0] * 10)
    found = said("ours > base", "in_domain.after", base={0: base}, ours={0: ours})
    assert (found.verdict, found.difference, found.tasks, found.seeds) == ("holds", 75.0, 40, (0,))
    assert found.low == pytest.approx(62.5, abs=3) and found.high == pytest.approx(87.5, abs=3)
    assert said("base > ours", "in_domain.after", base={0: base}, ours={0: ours}).verdict == "fails"
    assert said("ours > base + 75", "in_domain.after", base={0: base}, ours={0: ours}).verdict == "undecided"
    assert said("base > ours - 90", "in_domain.after", base={0: base}, ours={0: ours}).verdict == "holds"


def test_seeds_that_disagree_leave_it_open_however_many_tasks_there_are(tmp_path: Path) -> None:
    base = {s: save(tmp_path / f"a{s}", [0] * 400) for s in (0, 1)}
    ours = {0: save(tmp_path / "b0", [2] * 400), 1: save(tmp_path / "b1", [1] * 40 + [0] * 360)}
    found = said("ours > base", "in_domain.after", base=base, ours=ours)
    # by seed 100 and 5: t over two seeds, 12.706 * 67.18 / sqrt(2) = 603.5 either way of 52.5
    assert found.verdict == "undecided"
    assert found.low == pytest.approx(52.5 - 603.5, abs=0.5)


def test_few_tasks_leave_it_open_however_well_seeds_agree(tmp_path: Path) -> None:
    base = {s: save(tmp_path / f"a{s}", [0, 0, 0]) for s in (0, 1)}
    ours = {s: save(tmp_path / f"b{s}", [2, 0, 0]) for s in (0, 1)}
    found = said("ours > base", "in_domain.after", base=base, ours=ours)
    # the seeds agree, so only tasks vary: t over three tasks, 4.303 * 57.735 / sqrt(3) = 143.4 either way of 33.3
    assert found.verdict == "undecided" and found.low == pytest.approx(33.33 - 143.42, abs=0.1)


def test_a_change_is_held_against_a_number_by_the_runs_own_base(tmp_path: Path) -> None:
    rows = {"ours": {0: save(tmp_path / "b", [2] * 40, base=[0] * 20 + [2] * 20)}}
    above = said("ours > 0", "in_domain.delta", **rows)
    assert (above.verdict, above.difference, above.tasks) == ("holds", 50.0, 40)
    below = said("ours < 0", "in_domain.delta", **rows)
    assert (below.verdict, below.difference) == ("fails", -50.0)
    assert said("ours > 0", "in_domain.after", **rows).verdict == "undecided"  # no pairs, and one seed


def test_changes_from_different_bases_are_not_paired(tmp_path: Path) -> None:
    base = {0: save(tmp_path / "a", [0] * 40, base=[1] * 40)}
    same, other = save(tmp_path / "b", [2] * 40), save(tmp_path / "c", [2] * 40, base=[0] * 40)
    assert said("ours > base", "in_domain.delta", base=base, ours={0: same}).verdict == "holds"
    assert said("ours > base", "in_domain.delta", base=base, ours={0: other}).verdict == "undecided"


def test_training_numbers_are_decided_over_seeds(tmp_path: Path) -> None:
    rows = {
        name: {s: save(tmp_path / f"{name}{s}", [1], reward_std=[level + s / 1000]) for s in (0, 1, 2)}
        for name, level in (("base", 0.1), ("ours", 0.3))
    }
    assert said("ours > base", "train/reward_std", **rows).verdict == "holds"
    assert said("ours < 0.5", "train/reward_std", **rows).verdict == "holds"
    one = {name: {0: runs[0]} for name, runs in rows.items()}
    assert said("ours > base", "train/reward_std", **one).verdict == "undecided"


def test_a_gates_numbers_are_told_apart_by_the_interval_of_their_difference() -> None:
    report = {
        "t1": {
            "0.12": {"precision": 0.8, "precision_ci95": [0.6, 0.9], "cut": 21},
            "0.30": {"precision": 0.4, "precision_ci95": [0.3, 0.5], "cut": 60},
            "0.40": {"precision": 0.55, "precision_ci95": [0.45, 0.65]},
            "0.50": {"precision": 0.62, "precision_ci95": [0.5, 0.7]},
        },
        "tier1": {"saved_pct": 13.0, "ci95": [7.0, 19.0], "precision": 0.9},
    }
    rows = dict.fromkeys(["0.12", "0.30", "0.40", "0.50", "0.99", "tier1"])

    def verdict(text: str, metric: str) -> str:
        return decide_gate(comparison(text, rows), metric, report).verdict

    assert verdict("0.12 > 0.30", "t1/{}/precision") == "holds"
    assert verdict("0.30 > 0.12", "t1/{}/precision") == "fails"
    assert verdict("0.12 > 0.40", "t1/{}/precision") == "holds"  # their intervals meet, but 0.25 > sqrt(0.2^2 + 0.1^2)
    assert verdict("0.12 > 0.50", "t1/{}/precision") == "undecided"
    assert verdict("0.12 > 0.7", "t1/{}/precision") == "undecided"
    assert verdict("0.12 > 0.30", "t1/{}/cut") == "undecided"  # no interval
    assert verdict("0.12 > 0.99", "t1/{}/precision") == "not_run"
    assert verdict("tier1 > 0", "{}/saved_pct") == "holds"
    assert decide_gate(comparison("tier1 > 0", rows), "{}/saved_pct", None).verdict == "not_run"


@pytest.mark.parametrize(
    ("low", "high", "margin", "least", "verdict"),
    [
        (0.0, 1.0, 0, None, "undecided"),
        (0.1, 1.0, 0, 2.0, "holds"),  # clear of zero, however small
        (-1.0, 1.9, 0, 2.0, "fails"),  # level: no advantage of two points
        (-1.0, 2.0, 0, 2.0, "undecided"),
        (-1.0, 1.9, 0, None, "undecided"),
        (-3.0, -0.1, 0, 2.0, "fails"),
        (-1.5, 1.0, -2, 2.0, "holds"),  # a claim with a margin of its own has no other
        (-2.5, 1.0, -2, 2.0, "undecided"),
    ],
)
def test_the_least_advantage_that_counts(low, high, margin, least, verdict) -> None:
    assert settled(low, high, margin, least) == verdict
