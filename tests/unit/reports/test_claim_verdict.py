"""Claims on runs, decided by hand-worked intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.runs.result_file import read_result
from turnwise_study.claims import Decision, decide_claim, decide_gate_claim, verdict_of_interval
from turnwise_study.entries import Entry, count_entry_verdicts, read_entry
from turnwise_study.entry_figures import success_by_update
from turnwise_study.entry_tables import EACH_NOTE, SIGN_NOTE, entry_tables, summary_table
from turnwise_study.run_metrics import RunMetrics
from turnwise_study.sweeps.jobs import job_of, jobs, read_sweep_request
from turnwise_study.sweeps.sweep_file import claim_in_sweep_file
from turnwise_study.tables import to_markdown

# -- claim verdict -----------------------------------------------------------------------------------------------------

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
    return decide_claim(claim_in_sweep_file(text, dict.fromkeys(rows)), metric, rows)


def test_values_of_a_run(tmp_path: Path) -> None:
    run = save(tmp_path / "r", [2, 2, 1, 1], reward_std=[0.4, 0.3, 0.2, 0.1])
    assert run.value("in_domain.after") == 75.0
    assert run.value("train/reward_std") == pytest.approx(0.25)
    assert run.value("late train/reward_std") == pytest.approx(0.15)
    assert run.value("spread train/reward_std") == pytest.approx(0.125**0.5 / 10**0.5)  # variance 0.0125
    assert run.value("in_domain.delta / rollout_turns") == pytest.approx(0.25)
    assert run.value("train/nothing") is None
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"phase": "eval", "eval/repeat_rate": rate}) + "\n" for rate in (0.6, 0.2))
    again = RunMetrics(run.folder, run.result)
    assert (again.value("eval/repeat_rate"), again.value("last eval/repeat_rate")) == (pytest.approx(0.4), 0.2)
    with pytest.raises(InputError, match="one of late, spread"):
        run.value("early train/reward_std")
    assert run.outcomes("in_domain.after") == {
        "": {"seen/t0": [1, 1], "seen/t1": [1, 1], "seen/t2": [1, 0], "seen/t3": [1, 0]}
    }
    assert run.outcomes("in_domain.greedy.after") is None
    assert run.outcomes("train/reward_std") is None


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
        return decide_gate_claim(claim_in_sweep_file(text, rows), metric, report).verdict

    assert verdict("0.12 > 0.30", "t1/{}/precision") == "holds"
    assert verdict("0.30 > 0.12", "t1/{}/precision") == "fails"
    assert verdict("0.12 > 0.40", "t1/{}/precision") == "holds"  # their intervals meet, but 0.25 > sqrt(0.2^2 + 0.1^2)
    assert verdict("0.12 > 0.50", "t1/{}/precision") == "undecided"
    assert verdict("0.12 > 0.7", "t1/{}/precision") == "undecided"
    assert verdict("0.12 > 0.30", "t1/{}/cut") == "undecided"  # no interval
    assert verdict("0.12 > 0.99", "t1/{}/precision") == "not_run"
    assert verdict("tier1 > 0", "{}/saved_pct") == "holds"
    assert decide_gate_claim(claim_in_sweep_file("tier1 > 0", rows), "{}/saved_pct", None).verdict == "not_run"


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
    assert verdict_of_interval(low, high, margin, least) == verdict


# -- entry verdicts ----------------------------------------------------------------------------------------------------


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "p_tab1.yaml").write_text(SWEEP)
    return tmp_path / "conf"


def test_an_entry_as_its_runs_come_in(tmp_path: Path, conf: Path) -> None:
    outputs = tmp_path / "outputs"

    def entry():
        return read_entry(read_sweep_request(["sweep=p_tab1"], conf), [outputs])

    assert entry().verdict == "not_run"
    assert count_entry_verdicts([entry()]) == {
        "P": {"holds": 0, "fails": 0, "undecided": 0, "untestable": 0, "not_run": 1, "one_seed": 0}
    }
    for seed in range(3):
        save(outputs / f"p/tab1/base/seed{seed}", [0] * 40)
    assert entry().verdict == "not_run"  # the other side is missing
    for seed in range(3):
        save(outputs / f"p/tab1/ours/seed{seed}", [2] * 30 + [0] * 10)
    found = entry()
    assert [(d.verdict, d.cannot) for d in found.decisions] == [("holds", False), ("not_run", True)]
    assert found.verdict == "holds"  # what cannot be run here is left out
    assert count_entry_verdicts([found])["P"]["holds"] == 1
    text = to_markdown([summary_table([found]), *entry_tables(found)])
    assert "| P, Table 1 | p_tab1 | holds | 1 holds, 1 not_run | 6 |" in text
    assert "| Ours | 0, 1, 2 | 75.0 +- 0.0 | 20 |" in text
    assert "| Ours | 0, 1, 2 | 100 | 0 | - | - | - |" in text  # what training cost
    assert "Not run at scale=tiny: big (one size is shipped)." in text
    (outputs / "p/tab1/ours/seed0/result.json").write_text("{")
    assert "result.json: not JSON" in entry().notes[0]


def test_a_claim_is_asked_at_its_own_scale_alone(tmp_path: Path, conf: Path) -> None:
    sweep = conf / "sweep" / "p_tab1.yaml"
    sweep.write_text(sweep.read_text().replace("directions:", "directions:\n  ood.after: [ours > 90 at paper]"))
    text = sweep.read_text()
    assert "at paper" in text
    save_both(tmp_path / "outputs")

    def decision(scale: str) -> Decision:
        request = replace(read_sweep_request(["sweep=p_tab1"], conf), scale=scale)  # type: ignore[arg-type]
        entry = read_entry(request, [tmp_path / "outputs"])
        return next(d for d in entry.decisions if d.claim.at)

    told = decision("tiny")
    assert (told.verdict, told.cannot, told.why) == ("not_run", True, "a claim only for scale=paper")
    assert decision("paper").why != "a claim only for scale=paper"
    entry = read_entry(read_sweep_request(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
    assert entry.verdict == "holds"  # it is left out


def test_a_verdict_on_one_seed_is_marked(tmp_path: Path, conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace("[ours > base, big > ours]", "[ours > base, ours < base]"))

    def entry():
        places = [tmp_path / "outputs"]
        return read_entry(read_sweep_request(["sweep=p_tab1"], conf), places)

    save(tmp_path / "outputs/p/tab1/base/seed0", [0] * 40)
    for seed in range(3):
        save(tmp_path / f"outputs/p/tab1/ours/seed{seed}", [2] * 30 + [0] * 10)
    found = entry()
    assert [(d.verdict, d.one_seed, d.seeds) for d in found.decisions] == [
        ("holds", True, (0,)),
        ("fails", True, (0,)),
    ]
    assert found.decisions[0].sides == {"ours": (0, 1, 2), "base": (0,)}
    text = to_markdown([summary_table([found]), *entry_tables(found)])
    assert "| fails (one seed) | 1 holds (1 on one seed), 1 fails (1 on one seed) | 4 |" in text
    assert "| ours 0, 1, 2; base 0 | 40 | holds (one seed) |" in text
    assert SIGN_NOTE in text and EACH_NOTE in text
    assert (found.verdict, found.one_seed) == ("fails", True)
    for seed in (1, 2):
        save(tmp_path / f"outputs/p/tab1/base/seed{seed}", [0] * 40)
    text = to_markdown([summary_table([entry()]), *entry_tables(entry())])
    assert "| fails | 1 holds, 1 fails | 6 |" in text and "| 0, 1, 2 | 40 | holds |" in text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("metrics.jsonl", '{"split": "se'),
        ("evaluation/after.jsonl", '{"split": "se'),
        ("evaluation/base.jsonl", '{"split": "seen", "task": "t0", "success": true}'),
        ("evaluation/after.jsonl", '{"suite": "math", "item": "1", "score": null}'),
    ],
)
def test_a_damaged_run_is_left_out_and_told(tmp_path: Path, conf: Path, name: str, line: str) -> None:
    save_both(tmp_path / "outputs", (0, 1), 40)
    folder = tmp_path / "outputs/p/tab1/ours/seed0"
    (folder / name).write_text(line)
    found = read_entry(read_sweep_request(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
    assert sorted(found.rows["ours"]) == [1] and sorted(found.rows["base"]) == [0, 1]
    (note,) = found.notes
    assert note.startswith(f"left out: {folder / name}:1: ")
    assert (found.decisions[0].verdict, found.decisions[0].seeds) == ("holds", (1,))
    assert note in to_markdown(entry_tables(found))


# -- preconditions -----------------------------------------------------------------------------------------------------

WITH = """
pilots: {seeds: [100, 101]}
preconditions:
  spread: {says: spread of the rewards, metric: train/reward_std, row: ours,
           low: 0.2, high: 0.4, paper: "0.3, Section 5", remedy: sample hotter}
"""


@pytest.fixture
def pilot_conf(tmp_path: Path) -> Path:
    folder = tmp_path / "conf"
    (folder / "sweep").mkdir(parents=True)
    (folder / "sweep" / "p_tab1.yaml").write_text(SWEEP + WITH)
    return folder


def pilot(tmp_path: Path, seed: int, *spread: float) -> None:
    save(tmp_path / f"outputs/pilot/p/tab1/ours/seed{seed}", [1] * 4, reward_std=list(spread))


def entry(tmp_path: Path, pilot_conf: Path, name: str = "p_tab1") -> Entry:
    return read_entry(read_sweep_request([f"sweep={name}"], pilot_conf), [tmp_path / "outputs"])


def test_a_claim_waits_for_its_precondition_and_falls_with_it(tmp_path: Path, pilot_conf: Path) -> None:
    save_both(tmp_path / "outputs")
    found = entry(tmp_path, pilot_conf)
    assert found.decisions[0].verdict == "undecided" and "not measured" in found.decisions[0].why
    pilot(tmp_path, 100, 0.1, 0.2)  # mean 0.15
    found = entry(tmp_path, pilot_conf)
    assert found.decisions[0].verdict == found.verdict == "untestable"
    assert found.decisions[0].why == "spread of the rewards is 0.15, not 0.2 to 0.4 (sample hotter)"
    assert (found.decisions[0].low or 0) > 0  # the difference is clear, and means nothing
    assert count_entry_verdicts([found])["P"]["untestable"] == 1
    pilot(tmp_path, 101, 0.45, 0.45)  # with seed 100 the mean is 0.3
    found = entry(tmp_path, pilot_conf)
    assert found.decisions[0].verdict == found.verdict == "holds"
    assert (found.findings[0].value, found.findings[0].seeds) == (pytest.approx(0.3), (100, 101))


def test_what_can_be_tested_decides_an_entry(tmp_path: Path, pilot_conf: Path) -> None:
    path = pilot_conf / "sweep" / "p_tab1.yaml"
    text = path.read_text().replace("[ours > base, big > ours]", "[ours > base, base > 90]")
    path.write_text(text.replace("row: ours,", "row: ours, claims: [base > 90],"))
    save_both(tmp_path / "outputs")
    pilot(tmp_path, 100, 0.1)
    found = entry(tmp_path, pilot_conf)
    assert [d.verdict for d in found.decisions] == ["holds", "untestable"]
    assert found.verdict == "holds"
    path.write_text(text.replace("row: ours,", "row: ours, rows: [ours],"))
    found = entry(tmp_path, pilot_conf)
    assert [d.verdict for d in found.decisions] == ["untestable", "fails"]
    assert found.verdict == "fails"


def test_pilot_runs_are_other_runs_on_the_tasks_of_development(pilot_conf: Path) -> None:
    request = read_sweep_request(["sweep=p_tab1", "pilots=true"], pilot_conf)
    found = jobs(request)
    assert [(job.row, job.seed, job.name) for job in found] == [
        ("ours", 100, "pilot/p/tab1/ours"),
        ("ours", 101, "pilot/p/tab1/ours"),
    ]
    assert all("eval.seed=0" in job.overrides for job in found)
    assert "eval.seed=0" not in job_of(read_sweep_request(["sweep=p_tab1"], pilot_conf), "ours", 0).overrides
    with pytest.raises(InputError, match="pilots=true"):
        read_sweep_request(["sweep=p_tab1", "pilots=true", "seed=1"], pilot_conf)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (("row: ours,", "row: theirs,"), "theirs"),
        (("low: 0.2, high: 0.4, ", ""), "preconditions.spread"),
        (("[100, 101]", "[2, 101]"), "pilots.seeds"),
        (("pilots: {seeds: [100, 101]}", ""), "pilots"),
        (("row: ours,", "row: ours, claims: [ours > bese],"), "bese"),
        (("says: spread of the rewards,", "same: q_tab1/x, says: spread of the rewards,"), "preconditions.spread"),
    ],
)
def test_a_precondition_that_leads_nowhere_is_refused(pilot_conf: Path, change: tuple[str, str], place: str) -> None:
    path = pilot_conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=place):
        read_sweep_request(["sweep=p_tab1"], pilot_conf)


def run(folder: Path, looks: dict[int, tuple[float, float]], greedy: bool = False) -> RunMetrics:
    folder.mkdir(parents=True)
    key = "success_greedy" if greedy else "success"
    rows = [
        {"phase": "eval", "iteration": at, f"eval/seen/{key}": seen, f"eval/unseen/{key}": unseen, "eval/ood/x": 1.0}
        for at, (seen, unseen) in reversed(looks.items())
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = {"base": 0.0, "after": 1.0, "decoding": "greedy" if greedy else "sampled"}
    result = {"method": "m", "env": "e", "scale": "tiny", "seed": 0, "in_domain": scores}
    (folder / "result.json").write_text(json.dumps(result))
    return RunMetrics(folder, read_result(folder))


def test_evaluations_in_order_as_the_mean_over_splits(tmp_path: Path) -> None:
    looks = {0: (10.0, 20.0), 4: (30.0, 50.0)}
    wanted = {0: 15.0, 4: 40.0}
    assert success_by_update(run(tmp_path / "a", looks)) == wanted
    assert success_by_update(run(tmp_path / "b", looks, greedy=True)) == wanted  # the decoding that the result is of
