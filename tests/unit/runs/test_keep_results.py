"""Results that are kept say what the runs say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from scripts import keep_results

from turnwise.errors import InputError
from turnwise.runs.archive import opened, write_archive
from turnwise.runs.kept_runs import finished, keep_runs
from turnwise.runs.result_file import read_result
from turnwise_study.entries import read_entry
from turnwise_study.entry_tables import entry_tables, summary_table
from turnwise_study.gates.report import Settings, gate_report
from turnwise_study.run_metrics import RunMetrics
from turnwise_study.sweeps.jobs import read_sweep_request
from turnwise_study.tables import to_markdown

# -- keep results ------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]
RUNS = ROOT / "tests" / "runs"  # three kept runs
SWEEP = """
paper: P
entry: Table 1
title: P Table 1
columns: {score: in_domain.after}
rows:
  base: {overrides: method=sft iterations=0}
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


def kept(run: Path) -> Path:
    """Keeps a run, which is alone below its parent, and returns the place of the copy."""
    archives, errors = keep_runs([run], run.parent.parent, run.parent.parent / "results")
    if errors:
        assert not archives
        raise errors[0]
    return opened(run.parent.parent / "results" / run.parent.name / run.name)


def test_a_kept_run_says_what_the_run_says(tmp_path: Path) -> None:
    run = save(tmp_path / "r" / "seed0", 30)
    place = kept(run)
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"r.runs.parquet", "r", ".r.lock"}
    before, after = RunMetrics(run, read_result(run)), RunMetrics(place, read_result(place))
    for metric in ("in_domain.after", "train/reward_std", "late train/reward_std"):
        assert before.value(metric) == after.value(metric) is not None
    for metric in ("in_domain.delta", "ood.mean_change"):
        assert before.outcomes(metric) == after.outcomes(metric) is not None
        assert before.outcomes(metric, "base") == after.outcomes(metric, "base")


def test_twice_is_once_other_runs_stay_and_no_text_is_kept(tmp_path: Path) -> None:
    place, archive = kept(save(tmp_path / "r" / "seed0", 30)), tmp_path / "results" / "r.runs.parquet"
    first = archive.read_bytes()
    assert kept(tmp_path / "r" / "seed0") == place and archive.read_bytes() == first
    text = (place / "evaluation" / "after.jsonl").read_text()
    assert "messages" not in text and "prompt" not in text and len(text.splitlines()) == 41
    other = kept(save(tmp_path / "r" / "seed1", 20))
    assert read_result(other).in_domain.after == 50 and read_result(place).in_domain.after == 75
    kept(save_again(tmp_path / "r" / "seed0", 10))
    assert read_result(place).in_domain.after == 25 and read_result(other).in_domain.after == 50


def save_again(folder: Path, wins: int) -> Path:
    shutil.rmtree(folder)
    return save(folder, wins)


@pytest.mark.parametrize("commit", ["", "0123456789ab+"])
def test_what_no_commit_holds_is_not_kept(tmp_path: Path, commit: str) -> None:
    with pytest.raises(InputError, match=r"not committed.*from a clean tree"):
        kept(save(tmp_path / "r" / "seed0", 30, commit))
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("evaluation/after.jsonl", '{"suite": "s"}\n{"split": ', "after.jsonl:2: "),
        ("evaluation/after.jsonl", "[1]\n", "after.jsonl:1: "),
        ("rollouts/train.jsonl", '{"turns": ', "train.jsonl:1: "),
        ("rollouts/train.jsonl", '{"turns": [{"parent": -1}], "state": {}}', "train.jsonl:1: "),
        ("rollouts/train.jsonl", "{}", "train.jsonl:1: "),
        ("config.yaml", "rollout: {recorded: x, states: 1}", "config.yaml"),
        ("config.yaml", "rollout: 3", "config.yaml"),
        ("config.yaml", "[1]", "config.yaml"),
        ("metrics.jsonl", None, "metrics.jsonl"),  # is missing
    ],
)
def test_of_a_damaged_run_nothing_is_kept(tmp_path: Path, file: str, content: str | None, named: str) -> None:
    run = save(tmp_path / "r" / "seed0", 30)
    (run / "rollouts").mkdir()
    (run / "config.yaml").write_text("rollout: {recorded: 1, states: 1}\n")
    (run / "rollouts" / "train.jsonl").write_text(groups("a"))
    (run / file).write_text(content) if content is not None else (run / file).unlink()
    with pytest.raises((InputError, FileNotFoundError), match=named):
        kept(run)
    assert not (tmp_path / "results").exists()


def test_a_damaged_archive_is_refused_with_its_name(tmp_path: Path) -> None:
    place, archive = kept(save(tmp_path / "r" / "seed0", 30)), tmp_path / "results" / "r.runs.parquet"
    whole = archive.read_bytes()
    for damaged in (b"", b"no archive", whole[:-30], whole[:40] + bytes(200) + whole[240:]):
        archive.write_bytes(damaged)
        with pytest.raises(InputError, match=r"r\.runs\.parquet"):
            opened(place)
        with pytest.raises(InputError, match=r"r\.runs\.parquet"):
            write_archive(tmp_path / "results" / "r", {"a": b""})
        assert archive.read_bytes() == damaged
    for outside in ("/abs", "../up", "a/../../up"):
        archive.unlink()
        write_archive(tmp_path / "results" / "r", {outside: b"x"})
        with pytest.raises(InputError, match=r"r\.runs\.parquet.*outside"):
            opened(place)
    archive.unlink()
    write_archive(tmp_path / "results" / "r", {})
    assert [path.name for path in opened(tmp_path / "results" / "r").iterdir()] == [".unpacked"]


def test_a_killed_replacement_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path / "r", {"a": b"old"})
    opened(tmp_path / "r")
    write_archive(tmp_path / "r", {"a": b"new", "b": b"new"})
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if target.name == "r":  # between the two renames
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            opened(tmp_path / "r")
    assert (opened(tmp_path / "r") / "a").read_bytes() == b"new"


def test_an_archive_unpacks_to_the_folder_that_it_stands_for(tmp_path: Path) -> None:
    """Whichever path in or above it is opened; again after a change of the archive, and never over something else."""
    for paper in RUNS.iterdir():
        files = {str(path.relative_to(paper)): path.read_bytes() for path in paper.rglob("*") if path.is_file()}
        archive = write_archive(tmp_path / paper.name, files)
        assert (opened(tmp_path / paper.name / next(iter(files)))).read_bytes() == next(iter(files.values()))
    real = {path.relative_to(RUNS): path.read_bytes() for path in RUNS.rglob("*") if path.is_file()}
    for _ in range(2):
        found = [path for path in opened(tmp_path).rglob("*/*") if path.is_file() and path.name != ".unpacked"]
        assert {path.relative_to(tmp_path): path.read_bytes() for path in found} == real
    assert {path.stat().st_mtime_ns for path in found} == {
        path.stat().st_mtime_ns for path in tmp_path.glob("*.parquet")
    }
    assert [run.relative_to(tmp_path) for run in finished([tmp_path])] == [
        run.relative_to(RUNS) for run in finished([RUNS])
    ]
    write_archive(tmp_path / paper.name, {"more/result.json": b"new"})
    assert (opened(tmp_path / paper.name) / "more" / "result.json").read_bytes() == b"new"
    (tmp_path / paper.name / ".unpacked").unlink()  # now a folder of somebody else
    with pytest.raises(InputError, match=archive.name):
        opened(tmp_path)


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
        save(tmp_path / f"made/p/tab1/base/seed{seed}", 10)
        save(tmp_path / f"made/p/tab1/ours/seed{seed}", 30)
    assert not keep_runs(finished([tmp_path / "made"]), tmp_path / "made", kept)[1]

    def entry():
        return read_entry(read_sweep_request(["sweep=p_tab1"], conf), [own, kept])

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
    out = tmp_path / "outputs"
    save(out / "p/tab1/ours/seed0", 30)
    save(out / "p/tab1/ours/seed0.old-1", 30)
    options = ["--outputs", str(out), "--to", str(tmp_path / "results")]
    assert keep_results.main([str(out / "p"), *options]) == 0
    assert [path.relative_to(tmp_path / "results") for path in finished([tmp_path / "results"])] == [
        Path("p/tab1/ours/seed0")
    ]
    save(out / "p/tab1/ours/seed1", 30, "0123456789ab+")
    assert keep_results.main([str(out), *options]) == 2
    assert "seed1" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    for nothing in ("nothing", "empty"):
        assert keep_results.main([str(tmp_path / nothing), *options]) == 2
        assert str(tmp_path / nothing) in capsys.readouterr().err


# -- keep groups -------------------------------------------------------------------------------------------------------


def test_groups_are_kept_without_texts_where_all_of_them_were_recorded_and_say_the_same(tmp_path: Path) -> None:
    run, place = save(tmp_path / "out" / "r" / "seed0", 30), tmp_path / "kept" / "r" / "seed0"
    (run / "rollouts").mkdir()
    (run / "rollouts" / "train.jsonl").write_text(groups("a") + groups("b"))
    (run / "config.yaml").write_text("rollout: {recorded: 1, states: 2}\n")
    keep_runs([run], tmp_path / "out", tmp_path / "kept")
    assert (opened(place) / "result.json").is_file() and not (place / "rollouts").exists()
    (run / "config.yaml").write_text("rollout: {recorded: 2, states: 2}\n")
    keep_runs([run], tmp_path / "out", tmp_path / "kept")
    text = (opened(place) / "rollouts" / "train.jsonl").read_text()
    assert "seen" not in text and "messages" not in text and "expert" not in text
    settings = Settings(k=1, steps=(1, 2), resamples=50)
    said = [{**gate_report(folder, settings), "data": ""} for folder in (run, place)]
    assert said[0] == said[1] and said[0]["groups"] == 2 and said[0]["zero_variance"] == 1
