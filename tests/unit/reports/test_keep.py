"""Results that are kept say what the runs say."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from turnwise.analysis.gate_report import Settings, gate_report
from turnwise.errors import InputError
from turnwise.evaluation.stats import mean_interval, paired_mean_difference
from turnwise.papers.jobs import ask, played
from turnwise.reports.entry_tables import entry_tables, summary_table
from turnwise.reports.keep import each_line, finished, keep
from turnwise.reports.measured import Measured
from turnwise.reports.result import read_result
from turnwise.reports.summary import read_entry
from turnwise.reports.tables import to_markdown

ROOT = Path(__file__).resolve().parents[3]
SWEEP = """
paper: P
entry: Table 1
title: P Table 1
columns: {score: in_domain.after}
rows:
  base: {overrides: method=sft trainer.max_epochs=0}
  ours: {overrides: method=pivotrl}
directions: {in_domain.after: [ours > base], train/reward_std: [ours > 0.1]}
"""


def save(folder: Path, wins: int, commit: str = "0123456789ab") -> Path:
    (folder / "evaluation").mkdir(parents=True)
    for name, won in (("base", 10), ("after", wins)):
        rows = [
            {
                "split": "seen",
                "task": f"t{i}",
                "mode": "sampled",
                "attempt": 0,
                "success": i < won,
                "messages": ["x" * 500],
            }
            for i in range(40)
        ] + [{"suite": "s", "item": "s/0", "score": 1.0, "prompt": "p" * 500}]
        (folder / "evaluation" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    domain = {"base": 25.0, "after": 100 * wins / 40}
    result = {"method": "m", "env": "e", "scale": "tiny", "seed": 0, "in_domain": domain, "commit": commit}
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "config.yaml").write_text("method: m\n")
    rows = [{"phase": "train", "train/reward_std": 0.3 + i / 100} for i in range(4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_kept_run_says_what_the_run_says(tmp_path: Path) -> None:
    run, place = save(tmp_path / "outputs" / "r" / "seed0", 30), tmp_path / "results" / "r" / "seed0"
    size = keep(run, place)
    assert size == sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) < 3000
    before, after = Measured(run, read_result(run)), Measured(place, read_result(place))
    for metric in ("in_domain.after", "train/reward_std", "late train/reward_std"):
        assert before.value(metric) == after.value(metric) is not None
    for metric in ("in_domain.delta", "ood.mean_change"):
        assert before.outcomes(metric) == after.outcomes(metric) is not None
        assert before.outcomes(metric, "base") == after.outcomes(metric, "base")


def test_twice_is_once_and_no_text_is_kept(tmp_path: Path) -> None:
    run, place = save(tmp_path / "r", 30), tmp_path / "kept"
    keep(run, place)
    first = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    keep(run, place)
    assert first == {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    text = gzip.decompress((place / "evaluation" / "after.jsonl.gz").read_bytes()).decode()
    assert "messages" not in text and "prompt" not in text and len(text.splitlines()) == 41


@pytest.mark.parametrize("commit", ["", "0123456789ab+"])
def test_what_no_commit_holds_is_not_kept(tmp_path: Path, commit: str) -> None:
    with pytest.raises(InputError, match=r"not committed.*run it again from a clean tree"):
        keep(save(tmp_path / "r", 30, commit), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_torn_group_is_named(tmp_path: Path) -> None:
    run = save(tmp_path / "r", 30)
    (run / "config.yaml").write_text("rollout: {recorded: 1, states: 1}\n")
    (run / "rollouts").mkdir()
    for torn in ('{"turns": ', "{}", '{"turns": [{"parent": -1}], "state": {}}'):
        (run / "rollouts" / "train.jsonl").write_text(groups("a") + torn)
        with pytest.raises(InputError, match=r"train.jsonl:2: no recorded tree"):
            keep(run, tmp_path / "kept")


def test_of_a_damaged_run_nothing_counts_as_kept(tmp_path: Path) -> None:
    run = save(tmp_path / "r", 30)
    with (run / "evaluation" / "after.jsonl").open("a") as stream:
        stream.write('{"split": ')
    with pytest.raises(InputError, match=r"r/evaluation/after.jsonl:42: not a JSON object"):
        keep(run, tmp_path / "kept")
    (run / "evaluation" / "after.jsonl").write_text("[1]\n")
    with pytest.raises(InputError, match=r"after.jsonl:1: not a JSON object"):
        keep(run, tmp_path / "kept")
    (run / "metrics.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        keep(run, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8bno")
    with pytest.raises(InputError, match=r"a.jsonl.gz: cannot be unpacked"):
        list(each_line(tmp_path / "a.jsonl"))
    whole = gzip.compress(b"{}\n" * 999, mtime=0)
    (tmp_path / "b.jsonl.gz").write_bytes(whole[:-9])
    with pytest.raises(InputError, match=r"b.jsonl.gz: cannot be unpacked"):
        list(each_line(tmp_path / "b.jsonl"))
    assert list(each_line(tmp_path / "c.jsonl")) == []


def groups(text: str) -> str:
    """A recorded group of two rollouts that part at their second of three turns."""
    turns = [
        {
            "parent": i - 1 if i % 3 else -1,
            "text": f"{text} {i % 3 + (i == 4)}",
            "observation": f"{text} seen {i}",
            "tokens": 2,
        }
        for i in range(6)
    ]
    state = {"id": f"t/{text}", "task": text, "type": "look", "turn": 0, "messages": [{"content": "x"}]}
    row = {
        "iteration": 0,
        "state": state,
        "expert": text,
        "turns": turns,
        "rewards": {"total": [1.0, float(text == "a")]},
    }
    return json.dumps(row) + "\n"


def test_groups_are_kept_without_texts_where_all_of_them_were_recorded_and_say_the_same(tmp_path: Path) -> None:
    run, place = save(tmp_path / "r", 30), tmp_path / "kept"
    (run / "rollouts").mkdir()
    (run / "rollouts" / "train.jsonl").write_text(groups("a") + groups("b"))
    (run / "config.yaml").write_text("rollout: {recorded: 1, states: 2}\n")
    keep(run, place)
    assert not (place / "rollouts").exists()
    (run / "config.yaml").write_text("rollout: {recorded: 2, states: 2}\n")
    keep(run, place)
    text = gzip.decompress((place / "rollouts" / "train.jsonl.gz").read_bytes()).decode()
    assert "seen" not in text and "messages" not in text and "expert" not in text
    settings = Settings(k=1, steps=(1, 2), resamples=50)
    said = [gate_report(folder, settings) | {"data": ""} for folder in (run, place)]
    assert said[0] == said[1] and said[0]["groups"] == 2 and said[0]["zero_variance"] == 1


def test_an_entry_reads_the_groups_that_its_sweep_recorded(tmp_path: Path) -> None:
    conf, outputs = tmp_path / "conf", tmp_path / "outputs"
    (conf / "sweep").mkdir(parents=True)
    (conf / "sweep" / "p_groups.yaml").write_text(
        SWEEP.replace("base:", "never:").replace("ours:", "gated:").partition("directions")[0]
    )
    table = "paper: P\nentry: T\ntitle: T\ncolumns: {n: 't8/{}/n'}\nrows: {look: {}}\ngate_report: p_groups\n"
    (conf / "sweep" / "p_tab8.yaml").write_text(table + "directions: {'t8/{}/n': [look > 1]}\n")

    def entry():
        return read_entry(ask(["sweep=p_tab8"], conf), [outputs], mean_interval, paired_mean_difference, None)

    assert entry().verdict == "not_run"
    assert "python train.py sweep=p_tab8" in to_markdown(entry_tables(entry(), mean_interval))
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
    told = to_markdown(entry_tables(found, mean_interval))
    assert (
        f"2 recorded groups (commit 0123456789ab): python scripts/gate_report.py data={outputs}/p/groups/never." in told
    )
    assert "Configuration of the first seed: never `hash0`." in told
    asked, places = ask(["sweep=p_tab8"], conf), [outputs]
    checked = read_entry(asked, places, mean_interval, paired_mean_difference, None, lambda job: "hash0")
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
        "rows: {few: {overrides: a=1}, many: {overrides: a=2}}\n"
        "directions: {'{}/t7/10/prefix_edit_distance_mean/rho': [few > many]}\n"
    )

    def entry():
        asked = ask(["sweep=p_fig5"], conf)
        return read_entry(asked, [outputs, results], mean_interval, paired_mean_difference, None)

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
    told = to_markdown(entry_tables(found, mean_interval))
    for arm in (results / "p/fig5/few", outputs / "p/fig5/many"):
        assert f"python scripts/gate_report.py data={arm}" in told
    assert found.groups.seeds("few") == [0] and len(found.results) == 2
    asked = ask(["sweep=p_fig5", "rows=few"], conf)
    assert played(asked) is asked  # its rows are what runs


def test_own_runs_of_a_row_come_before_kept_ones(tmp_path: Path) -> None:
    conf, own, kept = tmp_path / "conf", tmp_path / "outputs", tmp_path / "results"
    (conf / "sweep").mkdir(parents=True)
    (conf / "sweep" / "p_tab1.yaml").write_text(SWEEP)
    for seed in range(3):
        keep(save(tmp_path / f"base{seed}", 10), kept / f"p/tab1/base/seed{seed}")
        keep(save(tmp_path / f"ours{seed}", 30), kept / f"p/tab1/ours/seed{seed}")

    def entry():
        return read_entry(ask(["sweep=p_tab1"], conf), [own, kept], mean_interval, paired_mean_difference, None)

    assert entry().verdict == "holds"
    assert f"Runs of {kept}/ (commit 0123456789ab): base, ours." in to_markdown(entry_tables(entry(), mean_interval))
    assert f"are those of {kept}/." in to_markdown([summary_table([entry()])])
    save(own / "p/tab1/ours/seed0", 10)
    found = entry()
    assert sorted(found.rows["ours"]) == [0] and sorted(found.rows["base"]) == [0, 1, 2]
    assert found.verdict == "undecided" and found.kept == {str(kept): ["base"]}


def test_the_command_keeps_names_and_leaves_out_what_it_cannot_keep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("keep_results", ROOT / "scripts" / "keep_results.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    out = tmp_path / "outputs"
    save(out / "p/tab1/ours/seed0", 30)
    save(out / "p/tab1/ours/seed0.old-1", 30)
    options = ["--outputs", str(out), "--to", str(tmp_path / "results")]
    assert script.main([str(out / "p"), *options]) == 0
    assert [path.relative_to(tmp_path / "results") for path in finished([tmp_path / "results"])] == [
        Path("p/tab1/ours/seed0")
    ]
    save(out / "p/tab1/ours/seed1", 30, "0123456789ab+")
    assert script.main([str(out), *options]) == 2
    told = capsys.readouterr()
    assert "seed1: its code is not committed" in told.err and "1 runs kept" in told.out and "1 left out" in told.out
    assert script.main([str(tmp_path / "nothing"), *options]) == 2
    assert capsys.readouterr() == (
        "",
        f"no finished run in {tmp_path / 'nothing'} (no such folder); give runs, or folders of them\n",
    )
    (tmp_path / "empty").mkdir()
    assert script.main([str(tmp_path / "empty"), *options]) == 2
    assert capsys.readouterr() == ("", f"no finished run in {tmp_path / 'empty'}; give runs, or folders of them\n")
