"""Every file of conf/sweep/: what can be told without composing it, and, slowly, that every row composes at both scales."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.schema import compose_config
from turnwise.runs.archive import opened
from turnwise.runs.kept_runs import finished
from turnwise.runs.result_file import Result, read_result
from turnwise.runs.run_folder import config_hash
from turnwise_study.run_metrics import RunMetrics
from turnwise_study.sweeps.jobs import SweepRequest, job_of, jobs, pilot_request, read_sweep_request, request_of_runs
from turnwise_study.sweeps.run_sweep import RowHashes
from turnwise_study.sweeps.sweep_file import SCALES, find_sweep, sweep_names

# -- shipped -----------------------------------------------------------------------------------------------------------

CONF = Path(__file__).parents[3] / "conf"
NAMES = sweep_names(CONF)
METRICS = (CONF.parent / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_paper_is_here() -> None:
    assert len(NAMES) >= 40
    assert {name.partition("_")[0] for name in NAMES} == {
        "pivotrl",
        "awpo",
        "trace",
        "selective",
        "turnwise",
    }  # the last: ours


@pytest.mark.parametrize("name", NAMES)
def test_a_sweeps_rows_lead_somewhere(name: str) -> None:
    sweep = find_sweep(name, CONF)
    for scale in SCALES:
        found = jobs(SweepRequest(sweep, CONF, scale))  # type: ignore[arg-type]
        assert len({(job.name, job.seed) for job in found}) == len(found)
    assert sweep.entry in sweep.title or sweep.entry in ("In text", "Tables 1 and 7") or " and " in sweep.entry


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_train_nothing_say_so(name: str) -> None:
    for row in find_sweep(name, CONF).rows.values():
        words = row.overrides or ()
        base = "iterations=0" in words
        assert row.trains == (not base), row.label


@pytest.mark.parametrize("name", NAMES)
def test_a_sweeps_metrics_are_explained(name: str) -> None:
    sweep = find_sweep(name, CONF)
    if sweep.gate_report:
        return
    explained = set(re.findall(r"`([^`]+)`", METRICS))
    run = RunMetrics(CONF, Result(method="m", env="e", scale="tiny", seed=0, in_domain={}))  # type: ignore[arg-type]
    metrics = {*filter(None, sweep.columns.values()), *sweep.directions}
    for metric in sorted(one for one in metrics if not one.startswith("config ")):  # settings: below
        run.value(metric)  # a number that no run could have is refused
        for part in metric.split(" / "):
            key = part.rpartition(" ")[2]
            if "/" in key:
                key = re.sub(r"mse_depth/.*", "mse_depth/<depth>", key)
                assert key in explained, f"{key} is in no table of docs/metrics.md"


SETTING = re.compile(r"\bconfig ([\w.]+)")  # the key of a setting that stands as a metric


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [name for name in NAMES if SETTING.search(str(find_sweep(name, CONF)))])
def test_a_setting_in_a_table_is_a_number_of_its_rows_or_none(name: str, scale: str) -> None:
    sweep = find_sweep(name, CONF).of_scale(scale)  # type: ignore[arg-type]
    keys = {row: SETTING.findall(str(sweep.columns)) + SETTING.findall(str(sweep.directions)) for row in sweep.rows}
    for one in sweep.preconditions.values():
        if one.row:
            keys[one.row] += SETTING.findall(one.metric)
    assert any(keys.values())
    for row, named in keys.items():
        cfg = (
            compose_config(job_of(SweepRequest(sweep, CONF, scale), row, 0).overrides, CONF, read=READ) if named else {}
        )  # type: ignore[arg-type]
        for key in named:
            assert isinstance(OmegaConf.select(cfg, key, default="absent"), int | float | None), (row, key)


EXTRAS = {"turnwise_reasoning": "reasoning_gym"}  # sweeps whose environment needs an extra package
CASES = [
    pytest.param(name, scale, marks=[pytest.mark.extra(EXTRAS[name])] if name in EXTRAS else [])
    for name, scale in product(NAMES, SCALES)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), CASES)
def test_every_row_composes_and_has_a_folder_of_its_own(name: str, scale: str) -> None:
    request = SweepRequest(find_sweep(name, CONF), CONF, scale)  # type: ignore[arg-type]
    sweep, folders, hashes, worlds = request.sweep, set(), {}, {}
    own = [row for row, made in sweep.rows.items() if made.overrides is not None]
    for row in own:
        overrides = job_of(request, row, sweep.seeds[0]).overrides
        cfg = compose_config(overrides, CONF, read=READ)
        check_config(cfg)
        assert cfg.scale == ("real" if "scale=real" in overrides else scale)  # a model of its own has its own sizes
        assert sweep.rows[row].trains == (cfg.trainer.max_epochs > 0)
        folders.add(cfg.paths.out)
        hashes[row] = config_hash(cfg)
        worlds[row] = cfg.env._target_
    assert len(folders) == len(own)
    compared = [claim.rows for claim in sweep.claims("in_domain.after") if set(claim.rows) <= worlds.keys()]
    assert all(len({worlds[row] for row in rows}) == 1 for rows in compared), worlds
    # a row that cannot run at a scale may be another's twin there, as sizes are where one policy stands for all
    runnable = [row for row in own if not sweep.rows[row].needs.get(scale)]
    assert len({hashes[row] for row in runnable}) == len(runnable)


# -- row hashes --------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]
_, RESULTS = ROOT / "conf", opened(ROOT / "results")

# kept runs of rows with overrides of their own, which docs/results tells
BESIDE = [
    ["sweep=trace_tab5", "rows=trace_8b,trace_fc_8b", "rollout.states=16"],
    ["sweep=trace_tab5", "rows=trace_8b,treepo_8b", "base=tiny", "env=household", "iterations=6"],
]


def test_a_row_has_the_hash_of_the_run_that_train_would_start() -> None:
    hashes, request = RowHashes(CONF), read_sweep_request(["sweep=pivotrl_tab4", "rows=full"], CONF)
    told = [hashes(job_of(request, "full", seed)) for seed in (0, 1, 0)]
    alone = [config_hash(compose_config(job_of(request, "full", seed).overrides, CONF)) for seed in (0, 1)]
    assert told == [alone[0], alone[1], alone[0]] and alone[0] != alone[1]
    other = read_sweep_request(["sweep=pivotrl_tab4", "rows=full", "update.learning_rate=0.5"], CONF)
    assert hashes(job_of(other, "full", 0)) not in told


def test_configurations_that_share_what_was_read_share_no_node() -> None:
    read: dict[str, bytes] = {}
    overrides = ["method=pivotrl", "name=x"]
    first = compose_config(overrides, CONF, read=read)
    first.loss.clip_high, first.trainer.max_epochs = 9.0, 77
    first.env.horizon = 1
    assert compose_config(overrides, CONF, read=read) == compose_config(overrides, CONF) != first
    assert "train" in read


@pytest.mark.slow  # composes every row of which there is a run
@pytest.mark.skipif(not RESULTS.exists(), reason="the kept runs are not in this copy")
def test_every_kept_run_is_of_the_configuration_that_its_row_is_now() -> None:
    hashes, changed = RowHashes(CONF), []
    left = set(finished([RESULTS]))
    every = [
        read_sweep_request(arguments, CONF)
        for arguments in [*([f"sweep={name}"] for name in sweep_names(CONF)), *BESIDE]
    ]
    every += [request_of_runs(pilot_request(request)) for request in every if request.sweep.pilots is not None]
    for request in every:
        for job in jobs(request):
            folder = RESULTS / job.name / f"seed{job.seed}"
            if folder in left:
                left.remove(folder)
                found = read_result(folder).config_hash
                changed += [] if found == hashes(job) else [f"{folder}: {found}, its row {job.row} is {hashes(job)}"]
    assert not changed, "\n".join(changed)
    assert not left, f"of no row: {sorted(map(str, left))}"
