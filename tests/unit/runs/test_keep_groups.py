"""Kept groups, which gates are judged on: without texts, beside the runs of their sweep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.runs.test_keep_results import SWEEP, groups, save

from turnwise.runs.archive import RunPath
from turnwise.runs.result_file import keep
from turnwise_study.entries import read_entry
from turnwise_study.entry_tables import entry_tables
from turnwise_study.gates.report import Settings, asked_of, gate_report
from turnwise_study.sweeps.jobs import ask, played
from turnwise_study.tables import to_markdown


def test_groups_are_kept_without_texts_where_all_of_them_were_recorded_and_say_the_same(tmp_path: Path) -> None:
    run, place = save(tmp_path / "out" / "r" / "seed0", 30), RunPath(tmp_path / "kept" / "r" / "seed0")
    (run / "rollouts").mkdir()
    (run / "rollouts" / "train.jsonl").write_text(groups("a") + groups("b"))
    (run / "config.yaml").write_text("rollout: {recorded: 1, states: 2}\n")
    keep([run], tmp_path / "out", tmp_path / "kept")
    assert (place / "result.json").is_file() and not (place / "rollouts").exists()
    (run / "config.yaml").write_text("rollout: {recorded: 2, states: 2}\n")
    keep([run], tmp_path / "out", tmp_path / "kept")
    text = (place / "rollouts" / "train.jsonl").read_text()
    assert "seen" not in text and "messages" not in text and "expert" not in text
    settings = Settings(k=1, steps=(1, 2), resamples=50)
    said = [gate_report(folder, settings) | {"data": ""} for folder in (run, place)]
    assert said[0] == said[1] and said[0]["groups"] == 2 and said[0]["zero_variance"] == 1


def test_a_report_takes_the_step_and_the_threshold_of_the_gated_runs(tmp_path: Path) -> None:
    divergence = "turnwise.algo.gates.rules.Divergence"
    for name, gate in (
        ("paper", f"{{_target_: {divergence}, k: 10, threshold: 0.12}}"),
        ("earlier", f"{{_target_: {divergence}, k: 5, threshold: 0.12, over: false}}"),
        ("another", "{_target_: turnwise.algo.gates.rules.Signal, k: 20, threshold: 0.01}"),
    ):
        save(tmp_path / name / "seed3", 30)
        (tmp_path / name / "seed3" / "config.yaml").write_text(f"gate: {gate}\n")
    assert [asked_of(tmp_path / name) for name in ("paper", "earlier", "another", "none")] == [{}, {"k": 5}, {}, {}]


def test_an_entry_reads_the_groups_that_its_sweep_recorded(tmp_path: Path) -> None:
    conf, outputs = tmp_path / "conf", tmp_path / "outputs"
    (conf / "sweep").mkdir(parents=True)
    (conf / "sweep" / "p_groups.yaml").write_text(
        SWEEP.replace("base:", "never:").replace("ours:", "gated:").partition("directions")[0]
    )
    table = "paper: P\nentry: T\ntitle: T\ncolumns: {n: 't8/{}/n'}\nrows: {look: {}}\ngate_report: p_groups\n"
    (conf / "sweep" / "p_tab8.yaml").write_text(table + "directions: {'t8/{}/n': [look > 1]}\n")

    def entry():
        return read_entry(ask(["sweep=p_tab8"], conf), [outputs])

    assert entry().verdict == "not_run"
    assert "python train.py sweep=p_tab8" in to_markdown(entry_tables(entry()))
    for seed in (0, 1):
        run = save(outputs / f"p/groups/never/seed{seed}", 10)
        (run / "rollouts").mkdir()
        turns = [
            {"parent": i - 1 if i % 12 else -1, "text": f"{i % 7}", "observation": f"{i}", "tokens": 1}
            for i in range(24)
        ]
        row = json.loads(groups("a")) | {"turns": turns}
        (run / "rollouts" / "train.jsonl").write_text(json.dumps(row) + "\n")
        result = json.loads((run / "result.json").read_text()) | {"seed": seed, "config_hash": f"hash{seed}"}
        (run / "result.json").write_text(json.dumps(result))
    found = entry()
    assert found.gates is not None and found.gates["groups"] == 2 and len(found.results) == 2
    told = to_markdown(entry_tables(found))
    assert (
        f"2 recorded groups of rollouts (commit 0123456789ab) with: python scripts/gate_report.py data={outputs}/p/groups/never."
        in told
    )
    assert "Hash of the configuration of each row's first seed: never `hash0`." in told
    asked, places = ask(["sweep=p_tab8"], conf), [outputs]
    checked = read_entry(asked, places, None, lambda job: "hash0")
    assert [(one.row, one.seed, one.kept) for one in checked.changed] == [("never", 1, "hash1")]
    (outputs / "p/groups/never/seed1").rename(outputs / "p/groups/never/seed1.old-1")  # put aside
    unfinished = save(outputs / "p/groups/never/seed2", 10)
    (unfinished / "rollouts").mkdir()
    (unfinished / "rollouts" / "train.jsonl").write_text('{"torn')
    (unfinished / "result.json").unlink()
    gates = entry().gates
    assert gates is not None and gates["groups"] == 1
    (outputs / "p/groups/never/seed0/rollouts/train.jsonl").write_text('{"torn')
    (outputs / "p/groups/never/seed0/result.json").write_text(
        (outputs / "p/groups/never/seed0/result.json").read_text().replace("0123456789ab", "1123456789ab")
    )
    broken = entry()
    assert (
        broken.verdict == "not_run" and "train.jsonl:1" in broken.notes[0]
    )  # the others of a summary are told all the same


def record_groups(folder: Path, seed: int, distances: Sequence[int]) -> None:
    """A finished run that recorded a group for each number: two rollouts of twelve turns that part after so many of them.

    The second wins in every other group, and the first nowhere.
    """
    run = save(folder / f"seed{seed}", 10)
    (run / "rollouts").mkdir()
    rows = []
    for number, parted in enumerate(distances):
        turns = [
            {
                "parent": i - 1 if i % 12 else -1,
                "text": f"{i % 12}{'x' * (i >= 12 + parted)}",
                "observation": "",
                "tokens": 1,
            }
            for i in range(24)
        ]
        rewards = {"total": [0.0, float(number % 2)]}
        rows.append(json.dumps(json.loads(groups(f"{number}")) | {"turns": turns, "rewards": rewards}))
    (run / "rollouts" / "train.jsonl").write_text("\n".join(rows) + "\n")


def test_rows_that_record_groups_of_their_own_are_held_against_each_other(tmp_path: Path) -> None:
    conf, outputs, results = tmp_path / "conf", tmp_path / "outputs", tmp_path / "results"
    (conf / "sweep").mkdir(parents=True)
    (conf / "sweep" / "p_fig5.yaml").write_text(
        "paper: P\nentry: Figure 5\ntitle: Figure 5\nseeds: [0]\ngate_report: p_fig5\n"
        "columns: {rho: '{}/peak/rho', k: '{}/peak/k'}\n"
        "rows: {begin: {overrides: a=0}, few: {overrides: a=1, starts: begin}, many: {overrides: a=2}}\n"
        "directions: {'{}/t7/10/prefix_edit_distance_mean/rho': [few > many]}\n"
    )

    def entry():
        asked = ask(["sweep=p_fig5"], conf)
        return read_entry(asked, [outputs, results])

    record_groups(outputs / "p/fig5/begin", 0, [1] * 3)  # what others start from is no arm
    assert entry().verdict == "not_run" and entry().groups is None
    # where the odd ones part at once and the even ones never, d_K follows the spread; parted alike, it says nothing
    record_groups(results / "p/fig5/few", 0, [12, 0] * 10)
    half = entry()
    assert half.verdict == "not_run" and half.kept == {str(results): ["few"]}
    record_groups(outputs / "p/fig5/many", 0, [12, 12, 0, 0] * 5)
    found = entry()
    assert found.gates is not None and found.groups is not None and found.gates["groups"] == 40
    assert found.gates["few"]["peak"]["rho"] == pytest.approx(1)
    assert found.gates["many"]["peak"]["rho"] == pytest.approx(0, abs=1e-9)
    (decision,) = found.decisions
    assert decision.verdict == "holds" and decision.difference == pytest.approx(1)
    told = to_markdown(entry_tables(found))
    for arm in (results / "p/fig5/few", outputs / "p/fig5/many"):
        assert f"python scripts/gate_report.py data={arm}" in told
    assert found.groups.seeds("few") == [0] and len(found.results) == 2
    asked = ask(["sweep=p_fig5", "rows=few"], conf)
    assert played(asked) is asked  # its rows are what runs
