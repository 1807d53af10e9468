"""Preconditions: what pilot runs measure decides whether a claim can be tested at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.reports.test_claim_verdict import SWEEP, save, save_both

from turnwise.errors import InputError
from turnwise_study.entries import Entry, as_json, counted, read_entry
from turnwise_study.entry_tables import entry_tables, summary_table
from turnwise_study.sweeps.jobs import ask, job_of, jobs
from turnwise_study.tables import to_markdown

WITH = """
pilots: {seeds: [100, 101]}
preconditions:
  spread: {says: spread of the rewards, metric: train/reward_std, row: ours,
           low: 0.2, high: 0.4, paper: "0.3, Section 5", remedy: sample hotter}
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    folder = tmp_path / "conf"
    (folder / "sweep").mkdir(parents=True)
    (folder / "sweep" / "p_tab1.yaml").write_text(SWEEP + WITH)
    return folder


def pilot(tmp_path: Path, seed: int, *spread: float) -> None:
    save(tmp_path / f"outputs/pilot/p/tab1/ours/seed{seed}", [1] * 4, reward_std=list(spread))


def entry(tmp_path: Path, conf: Path, name: str = "p_tab1") -> Entry:
    return read_entry(ask([f"sweep={name}"], conf), [tmp_path / "outputs"])


def test_a_claim_waits_for_its_precondition_and_falls_with_it(tmp_path: Path, conf: Path) -> None:
    save_both(tmp_path / "outputs")
    found = entry(tmp_path, conf)
    assert found.decisions[0].verdict == "undecided" and "not measured" in found.decisions[0].why
    pilot(tmp_path, 100, 0.1, 0.2)  # mean 0.15
    found = entry(tmp_path, conf)
    assert found.decisions[0].verdict == found.verdict == "untestable"
    assert found.decisions[0].why == "spread of the rewards is 0.15, not 0.2 to 0.4 (sample hotter)"
    assert (found.decisions[0].low or 0) > 0  # the difference is clear, and means nothing
    assert counted([found])["P"]["untestable"] == 1
    pilot(tmp_path, 101, 0.45, 0.45)  # with seed 100 the mean is 0.3
    found = entry(tmp_path, conf)
    assert found.decisions[0].verdict == found.verdict == "holds"
    assert (found.findings[0].value, found.findings[0].seeds) == (pytest.approx(0.3), (100, 101))


def test_an_untestable_claim_needs_no_runs_and_one_without_a_model_stays_not_run(tmp_path: Path, conf: Path) -> None:
    pilot(tmp_path, 100, 0.1)
    found = entry(tmp_path, conf)
    assert [d.verdict for d in found.decisions] == ["untestable", "not_run"]
    assert found.verdict == "untestable"


def test_what_can_be_tested_decides_an_entry(tmp_path: Path, conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    text = path.read_text().replace("[ours > base, big > ours]", "[ours > base, base > 90]")
    path.write_text(text.replace("row: ours,", "row: ours, claims: [base > 90],"))
    save_both(tmp_path / "outputs")
    pilot(tmp_path, 100, 0.1)
    found = entry(tmp_path, conf)
    assert [d.verdict for d in found.decisions] == ["holds", "untestable"]
    assert found.verdict == "holds"
    path.write_text(text.replace("row: ours,", "row: ours, rows: [ours],"))
    found = entry(tmp_path, conf)
    assert [d.verdict for d in found.decisions] == ["untestable", "fails"]
    assert found.verdict == "fails"


def test_another_sweep_shares_a_precondition_and_its_pilot_runs(tmp_path: Path, conf: Path) -> None:
    other = "\n".join(
        [
            "paper: P\nentry: Table 2\ntitle: Table 2 of P",
            "rows: {a: {same: p_tab1/ours}, b: {same: p_tab1/base}}",
            "directions: {in_domain.after: [a > b]}",
            "preconditions: {spread: {same: p_tab1/spread, rows: [a]}}",
        ]
    )
    (conf / "sweep" / "p_tab2.yaml").write_text(other)
    save_both(tmp_path / "outputs")
    pilot(tmp_path, 100, 0.1)
    found = entry(tmp_path, conf, "p_tab2")
    assert found.verdict == "untestable" and found.findings[0].label == "Ours"
    (conf / "sweep" / "p_tab2.yaml").write_text(other.replace("p_tab1/spread", "p_tab1/spred"))
    with pytest.raises(InputError, match="spred"):
        entry(tmp_path, conf, "p_tab2")


def test_tables_and_json_say_what_was_measured(tmp_path: Path, conf: Path) -> None:
    save_both(tmp_path / "outputs")
    pilot(tmp_path, 100, 0.1)
    pilot(tmp_path, 101, 0.2)
    found = entry(tmp_path, conf)
    text = to_markdown([summary_table([found]), *entry_tables(found)])
    assert "| P, Table 1 | p_tab1 | untestable | 1 untestable, 1 not_run |" in text
    assert (
        "| spread of the rewards | Ours | 100, 101 | 0.15 (0.1 to 0.2) | 0.2 to 0.4 | 0.3, Section 5 | no; sample hotter |"
        in text
    )
    told = as_json(found)
    (one,) = told["preconditions"]
    assert one["true"] is False and one["values"] == [0.1, 0.2] and one["runs"] == "pilot/p/tab1/ours"
    assert told["claims"][0]["verdict"] == "untestable" and told["claims"][0]["ci95"]


def test_pilot_runs_are_other_runs_on_the_tasks_of_development(conf: Path) -> None:
    asked = ask(["sweep=p_tab1", "pilots=true"], conf)
    found = jobs(asked)
    assert [(job.row, job.seed, job.name) for job in found] == [
        ("ours", 100, "pilot/p/tab1/ours"),
        ("ours", 101, "pilot/p/tab1/ours"),
    ]
    assert all("eval.seed=0" in job.overrides for job in found)
    assert "eval.seed=0" not in job_of(ask(["sweep=p_tab1"], conf), "ours", 0).overrides
    with pytest.raises(InputError, match="pilots=true"):
        ask(["sweep=p_tab1", "pilots=true", "seed=1"], conf)


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
def test_a_precondition_that_leads_nowhere_is_refused(conf: Path, change: tuple[str, str], place: str) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match=place):
        ask(["sweep=p_tab1"], conf)


def test_a_precondition_may_be_of_the_claims_on_one_metric(tmp_path: Path, conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    text = path.read_text().replace("in_domain.after: [ours > base, big > ours]", "in_domain.after: [ours > base]")
    text = text.replace("directions:", "directions:\n  rollout_turns: [ours > base]")
    path.write_text(text.replace("row: ours,", "row: ours, metrics: [in_domain.after],"))
    save_both(tmp_path / "outputs")
    pilot(tmp_path, 100, 0.1)
    found = {decision.metric: decision.verdict for decision in entry(tmp_path, conf).decisions}
    assert found == {"rollout_turns": "undecided", "in_domain.after": "untestable"}


def test_pilot_runs_may_leave_out_what_no_precondition_reads(conf: Path) -> None:
    path = conf / "sweep" / "p_tab1.yaml"
    path.write_text(path.read_text().replace("[100, 101]", "[100], overrides: eval.tasks=2 trainer.max_epochs=1"))
    (job,) = jobs(ask(["sweep=p_tab1", "pilots=true"], conf))
    assert job.overrides[-5:-2] == ("eval.tasks=2", "trainer.max_epochs=1", "eval.seed=0")
