"""A sweep from its first call to its last: what is run, what is left out, and what is said."""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from turnwise.config.schema import ConfigError
from turnwise.console import Terminal
from turnwise.errors import InputError, RowsFailed
from turnwise.runs.result_file import write_result
from turnwise.runs.run_folder import config_hash
from turnwise_study.sweeps.jobs import jobs, read_sweep_request
from turnwise_study.sweeps.run_sweep import RecordedJob, error_file, run_sweep


class Bench:
    """A folder of runs: composes like Hydra, launches in this process, and runs a task that can be made to fail."""

    def __init__(self, root: Path, conf: Path) -> None:
        self.root, self.conf, self.out = root, conf, StringIO()
        self.launched: list[str] = []
        self.failing: dict[str, BaseException] = {}
        self.horizon = 30

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        given = dict(item.split("=", 1) for item in overrides)
        name = given["name"].strip("'")
        keys = {"method": given["method"], "seed": int(given["seed"]), "env": {"horizon": self.horizon}}
        return OmegaConf.create({**keys, "name": name, "paths": {"out": f"{self.root}/{name}/seed${{seed}}"}})

    def launch(self, batch: Sequence[Sequence[str]]) -> None:
        for overrides in batch:
            cfg = self.compose(overrides)
            self.launched.append(f"{cfg.name.rsplit('/', 1)[-1]}{cfg.seed}")
            try:
                RecordedJob(self.task)(cfg)
            except RuntimeError:
                continue  # as Hydra's launchers do

    def task(self, cfg: DictConfig) -> None:
        folder = Path(cfg.paths.out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
        if error := self.failing.get(self.launched[-1]):
            raise error
        plain = {"method": cfg.method, "env": "e", "scale": "tiny", "seed": cfg.seed, "in_domain": {}}
        write_result({**plain, "config_hash": config_hash(cfg)}, folder)

    def __call__(self, *arguments: str) -> dict[str, str]:
        """Run the sweep; where its runs stand then, and what was launched is in ``launched``."""
        self.launched, self.out = [], StringIO()
        rows = () if any(argument.startswith("rows=") for argument in arguments) else ("rows=base,ours,theirs",)
        request = read_sweep_request(["sweep=p_tab1", *rows, *arguments], self.conf)
        found = run_sweep(request, self.compose, self.launch, Terminal(file=self.out, width=200))
        return {f"{one.job.row}{one.job.seed}": one.state for one in found}


@pytest.fixture
def bench(tmp_path: Path, conf: Path) -> Bench:
    return Bench(tmp_path / "outputs", conf)


def test_finished_rows_are_skipped(bench: Bench) -> None:
    done = bench()
    assert bench.launched == ["base0", "ours0", "base1", "ours1"]
    assert set(done.values()) == {"finished", "cannot run"} and done["theirs0"] == "cannot run"
    assert bench() == done and bench.launched == []
    bench("seed=0,1,2")
    assert bench.launched == ["base2", "ours2"]
    bench("fresh=true", "rows=base")
    assert bench.launched == ["base0", "base1"]


def test_failed_rows_are_told_and_run_alone(bench: Bench) -> None:
    bench.failing = {"ours0": InputError("data.file: line 3 is no JSON"), "base1": SystemExit(2)}
    with pytest.raises(RowsFailed, match=r"2 of 4 runs did not finish.*\n?.*line 3 is no JSON"):
        bench()
    assert bench.launched == ["base0", "ours0", "base1", "ours1"]  # a failure stops nobody
    bench("--dry-run")
    assert bench.launched == []
    said = bench.out.getvalue()
    assert (
        "data.file: line 3 is no JSON" in said
        and "SystemExit: 2" in said
        and "2 runs still have to be executed" in said
    )
    bench.failing = {}
    assert set(bench().values()) == {"finished", "cannot run"}
    assert bench.launched == ["ours0", "base1"]
    assert not list(bench.root.rglob("*.error.txt"))


def test_rows_that_start_from_another_come_after_it(bench: Bench) -> None:
    table = bench.conf / "sweep" / "p_tab1.yaml"
    table.write_text(
        table.read_text().replace(
            "  base:",
            "  last: {starts: later, overrides: method=grpo}\n  later: {starts: ours, overrides: method=sft}\n  base:",
            1,
        )
    )
    request = read_sweep_request(["sweep=p_tab1", "rows=last,later,base,ours", "seed=0"], bench.conf)
    batches: list[int] = []

    def launch(batch: Sequence[Sequence[str]]) -> None:
        batches.append(len(batch))
        bench.launch(batch)

    run_sweep(request, bench.compose, launch, Terminal(file=bench.out))
    assert bench.launched == ["base0", "ours0", "later0", "last0"] and batches == [2, 1, 1]
    later = jobs(request)[1]
    assert "policy.start='outputs/p/tab1/ours/seed${seed}/adapter'" in later.overrides and later.starts == "p/tab1/ours"


@pytest.mark.parametrize("starts", ["nothing", "theirs", "later"])
def test_a_row_starts_from_a_row_with_runs(bench: Bench, starts: str) -> None:
    table = bench.conf / "sweep" / "p_tab1.yaml"
    line = f"  later: {{starts: {starts}, overrides: method=grpo}}\n  base:"
    table.write_text(table.read_text().replace("  base:", line, 1))
    with pytest.raises(InputError, match=r"rows\.later\.starts"):
        read_sweep_request(["sweep=p_tab1"], bench.conf)


def test_an_interrupted_sweep_goes_on_with_what_is_missing(bench: Bench) -> None:
    bench.failing = {"ours0": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        bench()
    assert bench.launched == ["base0", "ours0"]
    bench.failing = {}
    bench("--dry-run")
    assert "interrupted" in bench.out.getvalue()
    bench()
    assert bench.launched == ["ours0", "base1", "ours1"]


def test_a_result_of_another_configuration_is_no_finished_row(bench: Bench) -> None:
    bench("rows=base", "seed=0")
    bench.horizon = 20
    assert bench("rows=base", "seed=0", "--dry-run") == {"base0": "changed"}
    result = bench.root / "p/tab1/base/seed0/result.json"
    result.write_text(json.dumps({"seed": 0}))  # half a result is none
    assert bench("rows=base", "seed=0", "--dry-run") == {"base0": "interrupted"}
    result.unlink()
    assert bench("rows=base", "seed=0", "--dry-run") == {"base0": "changed"}  # begun with another
    bench.horizon = 30
    assert bench("rows=base", "seed=0", "--dry-run") == {"base0": "interrupted"}


def test_a_launcher_that_dies_is_told_after_the_states(bench: Bench) -> None:
    def die(batch: Sequence[Sequence[str]]) -> None:
        raise RuntimeError("job 7 was killed")

    bench.launch = die  # type: ignore[method-assign]
    with pytest.raises(RowsFailed, match="job 7 was killed"):
        bench("seed=0")


def test_a_slurm_that_takes_no_job_is_no_failed_row(bench: Bench) -> None:
    refusal = type("FailedJobError", (RuntimeError,), {"__module__": "submitit.core.utils"})

    def refuse(batch: object) -> None:
        raise refusal("sbatch: error: invalid partition")

    bench.launch = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(refusal):  # train.py tells it and ends with the status of bad input
        bench()


def test_every_row_is_checked_before_any_runs(bench: Bench) -> None:
    whole = bench.compose

    def broken(overrides: Sequence[str]) -> DictConfig:
        cfg = whole(overrides)
        if "method=pivotrl" in overrides:
            cfg.loss = {"_target_": "turnwise.methods.loss.Clipped", "clip_hihg": 0.3}
        return cfg

    bench.compose = broken  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"row ours: loss.clip_hihg.*did you mean 'clip_high'") as caught:
        bench()
    assert sum("clip_hihg" in mistake for mistake in caught.value.mistakes) == 1  # told once for both seeds
    assert bench.launched == []


def test_the_error_of_a_row_does_not_keep_what_its_run_held(tmp_path: Path) -> None:
    class Weights:
        pass

    held: list[weakref.ref[Weights]] = []

    def task(cfg: DictConfig) -> None:
        weights = Weights()
        held.append(weakref.ref(weights))
        raise ValueError("no")

    cfg = OmegaConf.create({"paths": {"out": str(tmp_path / "seed0")}})
    with pytest.raises(RuntimeError, match="seed0: ValueError: no") as kept:  # as a launcher keeps it
        RecordedJob(task)(cfg)
    assert held[0]() is None and kept.value.__context__ is None
    assert "raise ValueError" in error_file(tmp_path / "seed0").read_text()
