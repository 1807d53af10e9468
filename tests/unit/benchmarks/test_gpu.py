"""make gpu: parts that end well, badly, too late or not at all, what is kept of them, and a dry run of real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpu
import gpu_rows
from gpu_parts import BENCHMARKS, LIMITS, WHOLE, Outcome, Part, parts_of
from gpu_report import page
from paper_rows import PAPERS
from turnwise.config.check import check_config
from turnwise.config.schema import compose_config

ROOT = BENCHMARKS.parent
DONE = 'print(\'words\'); print(\'{"benchmark": "tests", "passed": 2, "failed": 0, "errors": 0, "skipped": 1}\')'


def test_the_parts_fit_into_their_time_and_their_scripts_are_there(tmp_path: Path) -> None:
    for dry in (False, True):
        parts = parts_of(dry, tmp_path)
        assert len({part.name for part in parts}) == len(parts) == len(LIMITS)
        assert all(Path(part.command[1]).is_file() for part in parts)
        assert all(("cuda" in part.command) != dry for part in parts if part.name != "tests")
    assert sum(part.limit for part in parts_of(False, tmp_path)) <= WHOLE == 28 * 60


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, Path]]:
    """Runs make gpu over parts that are programs of one line."""

    def run(*words: str, limit: float = 20, **programs: str) -> tuple[int, Path]:
        parts = [Part(name, name, (sys.executable, "-c", text), limit) for name, text in programs.items()]
        monkeypatch.setattr(gpu, "parts_of", lambda dry, out: parts)
        return gpu.main(["dry=cpu", f"out={tmp_path}", *words]), tmp_path

    return run


def statuses(folder: Path) -> dict[str, tuple[str, str]]:
    return {one["part"]: (one["status"], one["reason"]) for one in json.loads((folder / "results.json").read_text())}


def test_what_fails_is_reported_and_the_rest_goes_on(
    made: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    status, folder = made(
        broken="import sys; print('half'); sys.exit('no such kernel')",
        silent="print('no object')",
        elsewhere='print(\'{"benchmark": "row", "not_here": "no vLLM"}\')',
        begun='print(\'{"unfinished": "3 of 10"}\')',
        good=DONE,
    )
    assert status == 1
    assert statuses(folder) == {
        "broken": ("failed", "exit status 1: no such kernel"),
        "silent": ("failed", "its last line is no JSON object"),
        "elsewhere": ("not here", "no vLLM"),
        "begun": ("out of time", "3 of 10"),
        "good": ("done", ""),
    }
    assert (folder / "broken" / "stdout.txt").read_text() == "half\n"
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["done"], last["failed"], last["out of time"], last["not here"]) == (1, 2, 1, 1)
    report = (folder / "report.md").read_text()
    assert "| good | done |" in report and "2 passed, 0 failed, 1 skipped" in report and "no such kernel" in report


def test_a_part_ends_at_its_limit_with_all_that_it_started(made: Callable[..., Any], tmp_path: Path) -> None:
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(tmp_path / 'late')!r}).touch()"
    text = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    status, folder = made(slow=text, limit=1)
    assert status == 1 and statuses(folder)["slow"] == ("out of time", "its limit of 1 s was reached")
    subprocess.run([sys.executable, "-c", "import time; time.sleep(3)"], check=True)
    assert not (tmp_path / "late").exists()


def test_a_finished_part_is_not_run_again_but_one_of_another_command_is(
    made: Callable[..., Any], tmp_path: Path
) -> None:
    counted = f"open({str(tmp_path / 'runs')!r}, 'a').write('x'); "
    for words in ((), (), ("again=true",)):
        assert made(*words, good=counted + DONE)[0] == 0
    assert (tmp_path / "runs").read_text() == "xx"
    made(good=counted + "1; " + DONE)
    assert (tmp_path / "runs").read_text() == "xxx"


def test_again_starts_the_rows_of_papers_again(
    made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A row continues where it was stopped; with again=true it does not."""
    assert {part.name: part.fresh for part in parts_of(True, tmp_path) if part.fresh} == {
        f"paper_{paper}": ("--fresh",) for paper in ("pivotrl", "trace", "selective", "awpo")
    }
    told = Part(
        "told", "told", (sys.executable, "-c", "import sys, json; print(json.dumps({'a': sys.argv[1:]}))"), 20, ("-x",)
    )
    monkeypatch.setattr(gpu, "parts_of", lambda dry, out: [told])
    for words, given in (((), []), (("again=true",), ["-x"])):
        assert gpu.main(["dry=cpu", f"out={tmp_path}", *words]) == 0
        assert json.loads((tmp_path / "results.json").read_text())[0]["result"] == {"a": given}


def test_parts_that_were_not_chosen_stay_in_the_report(made: Callable[..., Any]) -> None:
    made(one=DONE, two=DONE)
    status, folder = made("parts=two", "again=true", one=DONE, two=DONE)
    assert status == 0 and list(statuses(folder)) == ["one", "two"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["parts=nothing"], "no part is called nothing"),
        (["dry=tpu"], "dry=tpu"),
        (["what=1"], "what=1"),
        (["dry=cpu", "dry=cpu"], "at most once"),
        (["again=perhaps"], "again=perhaps"),
        (["parts="], "with a value"),
    ],
)
def test_bad_words_are_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(words) == 2
    assert says in capsys.readouterr().err


def test_the_page_shows_utilisation_and_planned_memory() -> None:
    contender = {"seconds": 0.5, "rate": 2.0, "rounds": []}
    result = {
        "benchmark": "update", "x_trl": 3.0, "absent": {"x_unsloth": "unsloth: no"},
        "contenders": {"turnwise": contender, "trl": contender},
        "tokens_per_second": {"turnwise": 1234.0, "trl": 400.0}, "mfu": {"turnwise": 0.41, "trl": None},
        "peak_bytes": {"turnwise": 3 << 20}, "planned_bytes": 4 << 20,
    }  # fmt: skip
    text = page(
        [Outcome("update_4b", [sys.executable, "benchmarks/update.py"], "done", result=result, machine={"gpu": "H100"})]
    )
    assert "| turnwise | 0.5 | 1,234 | 41.0% | 3 | 4 |" in text and "Not measured: unsloth: no." in text
    assert "`python benchmarks/update.py`" in text and "Measured on: gpu H100." in text


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("paper", PAPERS)
def test_the_rows_of_a_device_pass_the_check(
    paper: str, devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: devices)
    args: Any = SimpleNamespace(device="cuda", iterations=10)
    with PAPERS[paper](tmp_path, large=True) as row:
        given = row.overrides(gpu_rows.changes(args))
        cfg = compose_config([*given, "policy.model=tiny", f"paths.out={tmp_path / 'run'}"], ROOT / "conf")
        check_config(cfg)
    assert cfg.scale == "paper" and cfg.trainer.max_epochs == 10 and cfg.trainer.accelerator == "gpu"
    assert "vllm" not in cfg.engine._target_ and cfg.trainer.devices == devices


@pytest.mark.slow
def test_a_dry_run_measures_the_same_parts_on_a_cpu(tmp_path: Path) -> None:
    words = ["dry=cpu", "parts=tests,attention,rollout_0_6b,paper_selective", f"out={tmp_path}"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = statuses(tmp_path)
    assert found["tests"][0] == "not here" and "no CUDA device" in found["tests"][1]
    assert {name for name, (status, _) in found.items() if status == "done"} == {
        "attention",
        "rollout_0_6b",
        "paper_selective",
    }
    results = {one["part"]: one["result"] for one in json.loads((tmp_path / "results.json").read_text())}
    plans = results["attention"]["rows"][0]
    assert all(plans[name]["apart"] < 1e-5 for name in ("blocks", "gathered", "runs"))
    assert {"turnwise", "trl", "generate", "continuous"} <= set(results["rollout_0_6b"]["contenders"])
    row = results["paper_selective"]
    assert row["iterations"] == 2 and row["stored_tokens"] > 0 and row["planned_bytes"] > 0
    assert "no CUDA device" in (tmp_path / "report.md").read_text()
