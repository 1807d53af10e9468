"""Results that are kept say what the runs say."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path

import pytest

from turnwise.errors import InputError
from turnwise.experiments.jobs import ask
from turnwise.reports.entries import read_entry
from turnwise.reports.entry_tables import entry_tables, summary_table
from turnwise.reports.runs import RunMetrics
from turnwise.reports.tables import to_markdown
from turnwise.runs.json_lines import text_lines
from turnwise.runs.keep_results import finished, keep
from turnwise.runs.result_file import read_result

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
    before, after = RunMetrics(run, read_result(run)), RunMetrics(place, read_result(place))
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
    with pytest.raises(InputError, match=r"not committed.*from a clean tree"):
        keep(save(tmp_path / "r", 30, commit), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_torn_group_is_named(tmp_path: Path) -> None:
    run = save(tmp_path / "r", 30)
    (run / "config.yaml").write_text("rollout: {recorded: 1, states: 1}\n")
    (run / "rollouts").mkdir()
    for torn in ('{"turns": ', "{}", '{"turns": [{"parent": -1}], "state": {}}'):
        (run / "rollouts" / "train.jsonl").write_text(groups("a") + torn)
        with pytest.raises(InputError, match=r"train.jsonl:2: "):
            keep(run, tmp_path / "kept")


def test_of_a_damaged_run_nothing_counts_as_kept(tmp_path: Path) -> None:
    run = save(tmp_path / "r", 30)
    with (run / "evaluation" / "after.jsonl").open("a") as stream:
        stream.write('{"split": ')
    with pytest.raises(InputError, match=r"r/evaluation/after.jsonl:42: "):
        keep(run, tmp_path / "kept")
    (run / "evaluation" / "after.jsonl").write_text("[1]\n")
    with pytest.raises(InputError, match=r"after.jsonl:1: "):
        keep(run, tmp_path / "kept")
    (run / "metrics.jsonl").unlink()
    with pytest.raises(FileNotFoundError):
        keep(run, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8bno")
    with pytest.raises(InputError, match=r"a.jsonl.gz: "):
        list(text_lines(tmp_path / "a.jsonl"))
    whole = gzip.compress(b"{}\n" * 999, mtime=0)
    (tmp_path / "b.jsonl.gz").write_bytes(whole[:-9])
    with pytest.raises(InputError, match=r"b.jsonl.gz: "):
        list(text_lines(tmp_path / "b.jsonl"))
    assert list(text_lines(tmp_path / "c.jsonl")) == []


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


def test_own_runs_of_a_row_come_before_kept_ones(tmp_path: Path) -> None:
    conf, own, kept = tmp_path / "conf", tmp_path / "outputs", tmp_path / "results"
    (conf / "sweep").mkdir(parents=True)
    (conf / "sweep" / "p_tab1.yaml").write_text(SWEEP)
    for seed in range(3):
        keep(save(tmp_path / f"base{seed}", 10), kept / f"p/tab1/base/seed{seed}")
        keep(save(tmp_path / f"ours{seed}", 30), kept / f"p/tab1/ours/seed{seed}")

    def entry():
        return read_entry(ask(["sweep=p_tab1"], conf), [own, kept])

    assert entry().verdict == "holds"
    told = to_markdown(entry_tables(entry()))
    assert f"Rows whose runs are in {kept}/, made with the code of 0123456789ab: base, ours." in told
    assert f"the table uses the runs in {kept}/." in to_markdown([summary_table([entry()])])
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
    assert (
        "seed1: the code of this run was not committed" in told.err
        and "1 runs kept" in told.out
        and "1 left out" in told.out
    )
    remedy = "give the folders of finished runs, or folders that contain such folders"
    assert script.main([str(tmp_path / "nothing"), *options]) == 2
    assert capsys.readouterr() == (
        "",
        f"no finished run in {tmp_path / 'nothing'} (no such folder); {remedy}\n",
    )
    (tmp_path / "empty").mkdir()
    assert script.main([str(tmp_path / "empty"), *options]) == 2
    assert capsys.readouterr() == ("", f"no finished run in {tmp_path / 'empty'}; {remedy}\n")


@pytest.mark.parametrize("text", ["rollout: 3", "rollout: {recorded: x, states: 1}", "[1]"])
def test_a_configuration_of_something_else_is_named(tmp_path: Path, text: str) -> None:
    run = tmp_path / "outputs/p/seed0"
    save(run, 30)
    (run / "config.yaml").write_text(text)
    with pytest.raises(InputError, match=r"config\.yaml"):
        keep(run, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
