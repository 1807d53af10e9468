"""An entry's verdict as its runs come in: claims, costs, seeds, other configurations and damaged runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.reports.test_claim_verdict import SWEEP, save, save_both

from turnwise.errors import InputError
from turnwise_study.claims import Decision, entry_verdict
from turnwise_study.entries import as_json, counted, distinct_claims, read_entry
from turnwise_study.entry_tables import EACH_NOTE, SIGN_NOTE, entry_tables, summary_table
from turnwise_study.sweeps.jobs import ask
from turnwise_study.tables import to_markdown


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "p_tab1.yaml").write_text(SWEEP)
    return tmp_path / "conf"


def test_an_entry_as_its_runs_come_in(tmp_path: Path, conf: Path) -> None:
    outputs = tmp_path / "outputs"

    def entry():
        return read_entry(ask(["sweep=p_tab1"], conf), [outputs])

    assert entry().verdict == "not_run"
    assert counted([entry()]) == {
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
    assert counted([found])["P"]["holds"] == 1
    text = to_markdown([summary_table([found]), *entry_tables(found)])
    assert "| P, Table 1 | p_tab1 | holds | 1 holds, 1 not_run | 6 |" in text
    assert "| Ours | 0, 1, 2 | 75.0 +- 0.0 | 20 |" in text
    assert "| Ours | 0, 1, 2 | 100 | 0 | - | - | - |" in text  # what training cost
    assert "Not run at scale=tiny: big (one size is shipped)." in text
    (outputs / "p/tab1/ours/seed0/result.json").write_text("{")
    assert "result.json: the file is not JSON" in entry().notes[0]


def test_entries_that_show_the_same_runs_are_counted_once_and_so_are_their_claims(tmp_path: Path, conf: Path) -> None:
    shown = "paper: P\nentry: Figure 1\ntitle: P Figure 1\ncolumns: {score: in_domain.after}\n"
    rows = "rows: {base: {label: Base, same: p_tab1/base}, ours: {label: Ours, same: p_tab1/ours}}\n"
    (conf / "sweep" / "p_fig1.yaml").write_text(f"{shown}{rows}directions: {{in_domain.after: [ours > base]}}\n")
    save(tmp_path / "outputs/p/tab1/base/seed0", [0] * 40)
    save(tmp_path / "outputs/p/tab1/ours/seed0", [2] * 30 + [0] * 10)
    found = [read_entry(ask([f"sweep={name}"], conf), [tmp_path / "outputs"]) for name in ("p_tab1", "p_fig1")]
    assert [entry.verdict for entry in found] == ["holds", "holds"]
    assert (counted(found)["P"]["holds"], counted(found)["P"]["one_seed"]) == (1, 1)
    assert [(one.claim.text, one.verdict) for one in distinct_claims(found)] == [("ours > base", "holds")]
    notes = " ".join(summary_table(found).notes)
    assert "Of 1 distinct claims of the papers with an interval, 1 holds (1 of those that hold on one seed" in notes


def test_a_verdict_on_some_of_the_planned_seeds_says_so(tmp_path: Path, conf: Path) -> None:
    for seeds, mark in (((0, 1), "| holds (2 of 3 planned seeds) |"), ((2,), "| holds |")):
        save_both(tmp_path / "outputs", seeds)
        found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
        assert mark in to_markdown(entry_tables(found)[1:])


def test_claims_of_ours_are_told_and_not_counted(tmp_path: Path, conf: Path) -> None:
    sweep = conf / "sweep" / "p_tab1.yaml"
    sweep.write_text(sweep.read_text() + "also: {in_domain.after: [base > ours]}\n")
    save_both(tmp_path / "outputs")
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
    assert [(d.verdict, d.claim.ours) for d in found.decisions] == [
        ("holds", False),
        ("not_run", False),
        ("fails", True),
    ]
    assert found.verdict == "holds"
    text = to_markdown([summary_table([found]), *entry_tables(found)])
    assert "| holds | 1 holds, 1 not_run |" in text and "| fails, our claim |" in text


def test_a_claim_is_asked_at_its_own_scale_alone(tmp_path: Path, conf: Path) -> None:
    sweep = conf / "sweep" / "p_tab1.yaml"
    sweep.write_text(sweep.read_text().replace("directions:", "directions:\n  ood.after: [ours > 90 at paper]"))
    text = sweep.read_text()
    assert "at paper" in text
    save_both(tmp_path / "outputs")

    def decision(scale: str) -> Decision:
        asked = replace(ask(["sweep=p_tab1"], conf), scale=scale)  # type: ignore[arg-type]
        entry = read_entry(asked, [tmp_path / "outputs"])
        return next(d for d in entry.decisions if d.claim.at)

    told = decision("tiny")
    assert (told.verdict, told.cannot, told.why) == ("not_run", True, "a claim only for scale=paper")
    assert decision("paper").why != "a claim only for scale=paper"
    entry = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
    assert entry.verdict == "holds"  # it is left out


def test_rows_that_are_asked_for_are_told_alone(tmp_path: Path, conf: Path) -> None:
    save(tmp_path / "outputs/p/tab1/ours/seed0", [2] * 40)
    asked = ask(["sweep=p_tab1", "rows=ours"], conf)
    found = read_entry(asked, [tmp_path / "outputs"])
    assert list(found.rows) == ["ours"] and found.decisions == []
    assert "Base" not in to_markdown(entry_tables(found))


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
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
    text = to_markdown(entry_tables(found))
    assert "| Ours | 0, 1 | 200 | 2,000 | 8 | 10 | 20.0 |" in text


def test_a_claim_that_waits_leaves_an_entry_open(tmp_path: Path, conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace(", needs: {tiny: one size is shipped}", ""))
    save_both(tmp_path / "outputs", (0,), 40)
    asked = ask(["sweep=p_tab1"], conf)
    found = read_entry(asked, [tmp_path / "outputs"])
    assert [d.verdict for d in found.decisions] == ["holds", "not_run"]
    assert found.verdict == "undecided"
    assert entry_verdict([]) == "not_run"


def test_a_verdict_on_one_seed_is_marked(tmp_path: Path, conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace("[ours > base, big > ours]", "[ours > base, ours < base]"))

    def entry():
        places = [tmp_path / "outputs"]
        return read_entry(ask(["sweep=p_tab1"], conf), places)

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
    told = as_json(found)
    assert (told["verdict"], told["one_seed"]) == ("fails", True)
    assert told["claims"][0]["seeds_of"] == {"ours": [0, 1, 2], "base": [0]}
    assert told["rows"]["ours"]["seeds"] == [0, 1, 2]
    json.dumps(told)
    for seed in (1, 2):
        save(tmp_path / f"outputs/p/tab1/base/seed{seed}", [0] * 40)
    text = to_markdown([summary_table([entry()]), *entry_tables(entry())])
    assert "| fails | 1 holds, 1 fails | 6 |" in text and "| 0, 1, 2 | 40 | holds |" in text


def test_what_is_never_trained_needs_one_seed(tmp_path: Path, conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace("overrides: method=", "trains: false, overrides: method="))
    save_both(tmp_path / "outputs", (0,), 40)
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
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
    found = read_entry(asked, [tmp_path / "outputs"], None, now)
    assert [(c.row, c.seed, c.kept, c.now) for c in found.changed] == [
        ("base", 0, "", "base: no key 'x'"),
        ("ours", 1, "old1", "new"),
    ]
    folder = tmp_path / "outputs/p/tab1/ours"
    told = f"{folder}: these runs have another configuration hash than row ours has now: seed 1 (`old1`, now `new`)"
    assert told in to_markdown(entry_tables(found))
    assert told in to_markdown([summary_table([found])])
    assert as_json(found)["changed"][1]["now"] == "new"


@pytest.mark.parametrize("name", ["evaluation/after.jsonl", "metrics.jsonl"])
def test_a_damaged_run_is_left_out_and_told(tmp_path: Path, conf: Path, name: str) -> None:
    save_both(tmp_path / "outputs", (0, 1), 40)
    folder = tmp_path / "outputs/p/tab1/ours/seed0"
    (folder / name).write_text('{"split": "se')
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
    assert sorted(found.rows["ours"]) == [1] and sorted(found.rows["base"]) == [0, 1]
    (note,) = found.notes
    assert note.startswith(f"left out: {folder / name}")
    assert (found.decisions[0].verdict, found.decisions[0].seeds) == ("holds", (1,))
    assert note in to_markdown(entry_tables(found))


def test_what_a_profile_cost_stands_beside_what_training_did(tmp_path: Path, conf: Path) -> None:
    profiled = {"seconds": {"rollouts": 5.0, "profile": 7.0}, "profile_turns": 40, "profile_cpu_seconds": 3.0}
    for row, more in (("base", {"seconds": {"rollouts": 5.0}}), ("ours", profiled)):
        folder = tmp_path / f"outputs/p/tab1/{row}/seed0"
        save(folder, [2] * 4)
        result = json.loads((folder / "result.json").read_text())
        (folder / "result.json").write_text(json.dumps({**result, "cpu_seconds": 4.0, **more}))
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
    text = to_markdown(entry_tables(found))
    assert "| Ours | 0 | 100 | 0 | - | 4 | 40 | 3 | 7 | - |" in text
    assert "| Base | 0 | 100 | 0 | - | 4 | - | - | - | - |" in text
    base, ours = (found.rows[row][0] for row in ("base", "ours"))
    assert (base.value("sampled_turns"), base.value("sampled_cpu_seconds")) == (100, 4)
    assert (ours.value("sampled_turns"), ours.value("sampled_cpu_seconds")) == (140, 7)
    assert ours.value("in_domain.delta / sampled_turns") == pytest.approx(50 / 140)


def test_what_dapo_throws_away_is_told_of_its_rows(tmp_path: Path, conf: Path) -> None:
    for row, rule in (("base", "drop"), ("ours", "refill")):
        save(tmp_path / f"outputs/p/tab1/{row}/seed0", [2] * 4)
        config = f"advantage: {{zero_variance: {rule}}}\n"
        (tmp_path / f"outputs/p/tab1/{row}/seed0/config.yaml").write_text(config)
    found = read_entry(ask(["sweep=p_tab1"], conf), [tmp_path / "outputs"])
    text = to_markdown(entry_tables(found))
    assert "Ours: turns, tokens and CPU seconds include the groups that DAPO's filter discarded" in text
