"""Claims on runs, decided by hand-worked intervals."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.evaluation.stats import mean_interval, paired_mean_difference
from turnwise.papers.jobs import ask
from turnwise.papers.table import comparison
from turnwise.reports.entry_tables import entry_tables, summary_table
from turnwise.reports.measured import Measured
from turnwise.reports.result import read_result
from turnwise.reports.summary import as_json, counted, read_entry
from turnwise.reports.tables import to_markdown
from turnwise.reports.verdict import Decision, decide, decide_gate, entry_verdict, settled

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


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "p_tab1.yaml").write_text(SWEEP)
    return tmp_path / "conf"


def save(folder: Path, wins: list[int], base: list[int] | None = None, **training: list[float]) -> Measured:
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
    return Measured(folder, read_result(folder))


def said(text: str, metric: str, **rows: dict[int, Measured]):
    return decide(comparison(text, dict.fromkeys(rows)), metric, rows, mean_interval, paired_mean_difference)


def test_values_of_a_run(tmp_path: Path) -> None:
    run = save(tmp_path / "r", [2, 2, 1, 1], reward_std=[0.4, 0.3, 0.2, 0.1])
    assert run.value("in_domain.after") == 75.0
    assert run.value("train/reward_std") == pytest.approx(0.25)
    assert run.value("late train/reward_std") == pytest.approx(0.15)
    assert run.value("spread train/reward_std") == pytest.approx(0.125**0.5 / 10**0.5)  # variance 0.0125
    assert run.value("in_domain.delta / rollout_turns") == pytest.approx(0.25)
    assert run.value("train/nothing") is None
    with pytest.raises(InputError, match="none of late, spread"):
        run.value("early train/reward_std")
    assert run.outcomes("in_domain.after") == {
        "": {"seen/t0": [1, 1], "seen/t1": [1, 1], "seen/t2": [1, 0], "seen/t3": [1, 0]}
    }
    assert run.outcomes("in_domain.greedy.after") is None
    assert run.outcomes("train/reward_std") is None


def test_a_torn_line_is_told(tmp_path: Path) -> None:
    run = save(tmp_path / "r", [1])
    (run.folder / "metrics.jsonl").write_text('{"phase": "train"}\n{"pha')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: not JSON"):
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
    assert found.verdict == "undecided" and found.low == pytest.approx(0, abs=1e-9)


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


def test_settled() -> None:
    assert [settled(*ends, 0) for ends in ((0.1, 1), (-1, -0.1), (-1, 1), (0, 1))] == [
        "holds", "fails", "undecided", "undecided"
    ]  # fmt: skip


def test_a_gates_numbers_are_told_apart_by_their_own_intervals() -> None:
    report = {
        "t1": {
            "0.12": {"precision": 0.8, "precision_ci95": [0.6, 0.9], "cut": 21},
            "0.30": {"precision": 0.4, "precision_ci95": [0.3, 0.5], "cut": 60},
        },
        "tier1": {"saved_pct": 13.0, "ci95": [7.0, 19.0], "precision": 0.9},
    }
    rows = dict.fromkeys(["0.12", "0.30", "0.99", "tier1"])

    def verdict(text: str, metric: str) -> str:
        return decide_gate(comparison(text, rows), metric, report).verdict

    assert verdict("0.12 > 0.30", "t1/{}/precision") == "holds"
    assert verdict("0.30 > 0.12", "t1/{}/precision") == "fails"
    assert verdict("0.12 > 0.7", "t1/{}/precision") == "undecided"
    assert verdict("0.12 > 0.30", "t1/{}/cut") == "undecided"  # no interval
    assert verdict("0.12 > 0.99", "t1/{}/precision") == "not_run"
    assert verdict("tier1 > 0", "{}/saved_pct") == "holds"
    assert decide_gate(comparison("tier1 > 0", rows), "{}/saved_pct", None).verdict == "not_run"


def test_an_entry_as_its_runs_come_in(tmp_path: Path, conf: Path) -> None:
    outputs = tmp_path / "outputs"

    def entry():
        return read_entry(ask(["sweep=p_tab1"], conf), [outputs], mean_interval, paired_mean_difference, None)

    assert entry().verdict == "not_run"
    assert counted([entry()]) == {"P": {"holds": 0, "fails": 0, "undecided": 0, "not_run": 1}}
    for seed in range(3):
        save(outputs / f"p/tab1/base/seed{seed}", [0] * 40)
    assert entry().verdict == "not_run"  # the other side is missing
    for seed in range(3):
        save(outputs / f"p/tab1/ours/seed{seed}", [2] * 30 + [0] * 10)
    found = entry()
    assert [(d.verdict, d.cannot) for d in found.decisions] == [("holds", False), ("not_run", True)]
    assert found.verdict == "holds"  # what cannot be run here is left out
    assert counted([found])["P"]["holds"] == 1
    text = to_markdown([summary_table([found]), *entry_tables(found, mean_interval)])
    assert "| P, Table 1 | p_tab1 | holds | 1 holds, 1 not_run | 6 |" in text
    assert "| Ours | 0, 1, 2 | 75.0 +- 0.0 | 20 |" in text
    assert "| Ours | 0, 1, 2 | 100 | 0 | - | - | - |" in text  # what training cost
    assert "Not run at scale=tiny: big (one size is shipped)." in text
    (outputs / "p/tab1/ours/seed0/result.json").write_text("{")
    assert "result.json: not JSON" in entry().notes[0]


def test_claims_of_ours_are_told_and_not_counted(tmp_path: Path, conf: Path) -> None:
    sweep = conf / "sweep" / "p_tab1.yaml"
    sweep.write_text(sweep.read_text() + "also: {in_domain.after: [base > ours]}\n")
    for seed in range(3):
        save(tmp_path / f"outputs/p/tab1/base/seed{seed}", [0] * 40)
        save(tmp_path / f"outputs/p/tab1/ours/seed{seed}", [2] * 30 + [0] * 10)
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
    assert [(d.verdict, d.claim.ours) for d in found.decisions] == [
        ("holds", False),
        ("not_run", False),
        ("fails", True),
    ]
    assert found.verdict == "holds"
    text = to_markdown([summary_table([found]), *entry_tables(found, mean_interval)])
    assert "| holds | 1 holds, 1 not_run |" in text and "| fails, our claim |" in text


def test_a_claim_is_asked_at_its_own_scale_alone(tmp_path: Path, conf: Path) -> None:
    sweep = conf / "sweep" / "p_tab1.yaml"
    sweep.write_text(sweep.read_text().replace("directions:", "directions:\n  ood.after: [ours > 90 at paper]"))
    text = sweep.read_text()
    assert "at paper" in text
    for seed in range(3):
        save(tmp_path / f"outputs/p/tab1/base/seed{seed}", [0] * 40)
        save(tmp_path / f"outputs/p/tab1/ours/seed{seed}", [2] * 30 + [0] * 10)

    def decision(scale: str) -> Decision:
        asked = replace(ask(["sweep=p_tab1"], conf), scale=scale)  # type: ignore[arg-type]
        entry = read_entry(asked, [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
        return next(d for d in entry.decisions if d.claim.at)

    told = decision("tiny")
    assert (told.verdict, told.cannot, told.why) == ("not_run", True, "a claim of scale=paper")
    assert decision("paper").why != "a claim of scale=paper"
    entry = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
    assert entry.verdict == "holds"  # it is left out


def test_rows_that_are_asked_for_are_told_alone(tmp_path: Path, conf: Path) -> None:
    save(tmp_path / "outputs/p/tab1/ours/seed0", [2] * 40)
    asked = ask(["sweep=p_tab1", "rows=ours"], conf)
    found = read_entry(asked, [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
    assert list(found.rows) == ["ours"] and found.decisions == []
    assert "Base" not in to_markdown(entry_tables(found, mean_interval))


def test_costs_are_means_over_seeds(tmp_path: Path, conf: Path) -> None:
    for seed, (turns, cpu) in enumerate([(100, 8.0), (300, 12.0)]):
        folder = tmp_path / f"outputs/p/tab1/ours/seed{seed}"
        save(folder, [2] * 4)
        result = json.loads((folder / "result.json").read_text())
        changed = {"rollout_turns": turns, "rollout_tokens": 10 * turns, "cpu_seconds": cpu}
        (folder / "result.json").write_text(json.dumps(result | changed))
        rows = [{"rollout/trajectories": t, "cpu/iteration": cpu / 2, "cpu/predictor": cpu / 10} for t in (4.0, 8.0)]
        lines = [json.dumps({"phase": "train"} | row) + "\n" for row in rows]
        (folder / "metrics.jsonl").write_text("".join(lines))
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
    text = to_markdown(entry_tables(found, mean_interval))
    assert "| Ours | 0, 1 | 200 | 2,000 | 8 | 10 | 20.0 |" in text


def test_a_claim_that_waits_leaves_an_entry_open(tmp_path: Path, conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace(", needs: {tiny: one size is shipped}", ""))
    for row, wins in (("base", [0] * 40), ("ours", [2] * 40)):
        save(tmp_path / f"outputs/p/tab1/{row}/seed0", wins)
    asked = ask(["sweep=p_tab1"], conf)
    found = read_entry(asked, [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
    assert [d.verdict for d in found.decisions] == ["holds", "not_run"]
    assert found.verdict == "undecided"
    assert entry_verdict([]) == "not_run"


def test_a_verdict_on_one_seed_is_marked(tmp_path: Path, conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace("[ours > base, big > ours]", "[ours > base, ours < base]"))

    def entry():
        places = [tmp_path / "outputs"]
        return read_entry(ask(["sweep=p_tab1"], conf), places, mean_interval, paired_mean_difference, None)

    save(tmp_path / "outputs/p/tab1/base/seed0", [0] * 40)
    for seed in range(3):
        save(tmp_path / f"outputs/p/tab1/ours/seed{seed}", [2] * 30 + [0] * 10)
    found = entry()
    assert [(d.verdict, d.one_seed, d.seeds) for d in found.decisions] == [
        ("holds", True, (0,)),
        ("fails", True, (0,)),
    ]
    assert found.decisions[0].sides == {"ours": (0, 1, 2), "base": (0,)}
    text = to_markdown([summary_table([found]), *entry_tables(found, mean_interval)])
    assert "| fails (one seed) | 1 holds (1 on one seed), 1 fails (1 on one seed) | 4 |" in text
    assert "| ours 0, 1, 2; base 0 | 40 | holds (one seed) |" in text
    assert "b - a" in text and "nothing is corrected for the number of claims" in text
    told = as_json(found)
    assert (told["verdict"], told["one_seed"]) == ("fails", True)
    assert told["claims"][0]["seeds_of"] == {"ours": [0, 1, 2], "base": [0]}
    assert told["rows"]["ours"]["seeds"] == [0, 1, 2]
    json.dumps(told)
    for seed in (1, 2):
        save(tmp_path / f"outputs/p/tab1/base/seed{seed}", [0] * 40)
    text = to_markdown([summary_table([entry()]), *entry_tables(entry(), mean_interval)])
    assert "| fails | 1 holds, 1 fails | 6 |" in text and "| 0, 1, 2 | 40 | holds |" in text


def test_what_is_never_trained_needs_one_seed(tmp_path: Path, conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace("overrides: method=", "trains: false, overrides: method="))
    for row, wins in (("base", [0] * 40), ("ours", [2] * 40)):
        save(tmp_path / f"outputs/p/tab1/{row}/seed0", wins)
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
    assert (found.decisions[0].verdict, found.decisions[0].one_seed) == ("holds", False)


def test_runs_of_another_configuration_are_told(tmp_path: Path, conf: Path) -> None:
    for seed in range(2):
        folder = tmp_path / f"outputs/p/tab1/ours/seed{seed}"
        save(folder, [2] * 4)
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**result, "config_hash": f"old{seed}"}))

    def now(job):
        if job.row == "base":
            raise InputError("base: no key 'x'\nsecond line")
        return f"old{job.seed}" if job.seed == 0 else "new"

    save(tmp_path / "outputs/p/tab1/base/seed0", [0] * 4)
    asked = ask(["sweep=p_tab1"], conf)
    found = read_entry(asked, [tmp_path / "outputs"], mean_interval, paired_mean_difference, None, now)
    assert [(c.row, c.seed, c.kept, c.now) for c in found.changed] == [
        ("base", 0, "", "base: no key 'x'"),
        ("ours", 1, "old1", "new"),
    ]
    told = f"row ours is now: {tmp_path / 'outputs/p/tab1/ours'}, seed 1 (`old1`, now `new`)"
    assert told in to_markdown(entry_tables(found, mean_interval))
    assert told in to_markdown([summary_table([found])])
    assert as_json(found)["changed"][1]["now"] == "new"


@pytest.mark.parametrize("name", ["evaluation/after.jsonl.gz", "evaluation/after.jsonl", "metrics.jsonl"])
def test_a_damaged_run_is_left_out_and_told(tmp_path: Path, conf: Path, name: str) -> None:
    for row, wins in (("base", [0] * 40), ("ours", [2] * 40)):
        for seed in range(2):
            save(tmp_path / f"outputs/p/tab1/{row}/seed{seed}", wins)
    folder = tmp_path / "outputs/p/tab1/ours/seed0"
    if name.endswith(".gz"):
        whole = (folder / name.removesuffix(".gz")).read_bytes()
        (folder / name.removesuffix(".gz")).unlink()
        (folder / name).write_bytes(gzip.compress(whole)[:-20])
    else:
        (folder / name).write_text('{"split": "se')
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
    assert sorted(found.rows["ours"]) == [1] and sorted(found.rows["base"]) == [0, 1]
    (note,) = found.notes
    assert note.startswith(f"left out: {folder / name}")
    assert (found.decisions[0].verdict, found.decisions[0].seeds) == ("holds", (1,))
    assert note in to_markdown(entry_tables(found, mean_interval))


def test_what_a_profile_cost_stands_beside_what_training_did(tmp_path: Path, conf: Path) -> None:
    for row, more in (
        ("base", {"seconds": {"rollouts": 5.0}}),
        ("ours", {"seconds": {"rollouts": 5.0, "profile": 7.0}, "verifier": {"toy": {"profile": {"judged": 40}}}}),
    ):
        folder = tmp_path / f"outputs/p/tab1/{row}/seed0"
        save(folder, [2] * 4)
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**result, **more}))
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
    text = to_markdown(entry_tables(found, mean_interval))
    assert "| Ours | 0 | 100 | 0 | - | - | 40 | - | 7 | - |" in text
    assert "| Base | 0 | 100 | 0 | - | - | - | - | - | - |" in text
    assert "did not write down a profile's CPU seconds: Ours." in text
    base, ours = (found.rows[row][0] for row in ("base", "ours"))
    assert (base.value("sampled_turns"), base.value("sampling_seconds")) == (100, 5)
    assert (ours.value("sampled_turns"), ours.value("sampling_seconds")) == (140, 12)
    assert ours.value("in_domain.delta / sampled_turns") == pytest.approx(50 / 140)

    def other(**of) -> Measured:
        return Measured(ours.folder, ours.result.model_copy(update=of))

    assert other(profile_turns=41).value("sampled_turns") == 141  # what was counted goes before
    silent = other(verifier={})  # a profile of which nothing tells but its seconds
    assert silent.value("sampled_turns") is None and silent.value("sampling_seconds") == 12
    elsewhere = other(seconds={"rollouts": 5.0})  # made by an earlier start
    assert elsewhere.value("sampled_turns") == 140 and elsewhere.value("sampling_seconds") is None
    (ours.folder / "metrics.jsonl").write_text('{"phase": "train", "states/profiles": 2}\n')
    assert other().value("sampled_turns") is None  # of two profiles one was counted


def test_what_dapo_throws_away_is_told_of_its_rows(tmp_path: Path, conf: Path) -> None:
    for row, rule in (("base", "drop"), ("ours", "refill")):
        save(tmp_path / f"outputs/p/tab1/{row}/seed0", [2] * 4)
        config = f"advantage: {{zero_variance: {rule}}}\n"
        (tmp_path / f"outputs/p/tab1/{row}/seed0/config.yaml").write_text(config)
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"], mean_interval, paired_mean_difference, None)
    text = to_markdown(entry_tables(found, mean_interval))
    assert "Ours: turns, tokens and CPU seconds count what DAPO's filter threw away" in text
