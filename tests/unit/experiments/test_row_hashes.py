"""The hash that a row's runs would have now, and whether the kept runs have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnwise.config.schema import ConfigError, compose_config
from turnwise.runs.archive import RunPath
from turnwise.runs.result_file import finished, read_result
from turnwise.runs.run_folder import config_hash
from turnwise_study.sweeps.jobs import ask, job_of, jobs, of_pilots, played
from turnwise_study.sweeps.row_hashes import RowHashes
from turnwise_study.sweeps.sweep_file import sweep_names

ROOT = Path(__file__).parents[3]
CONF, RESULTS = ROOT / "conf", RunPath(ROOT / "results")

# kept runs of rows with overrides of their own, which docs/results tells
BESIDE = [
    ["sweep=trace_tab5", "rows=trace_8b,trace_fc_8b", "rollout.states=16"],
    ["sweep=trace_tab5", "rows=trace_8b,treepo_8b", "base=tiny", "env=household", "trainer.max_epochs=6"],
]


def test_a_row_has_the_hash_of_the_run_that_train_would_start() -> None:
    hashes, asked = RowHashes(CONF), ask(["sweep=pivotrl_tab4", "rows=full"], CONF)
    told = [hashes(job_of(asked, "full", seed)) for seed in (0, 1, 0)]
    alone = [config_hash(compose_config(job_of(asked, "full", seed).overrides, CONF)) for seed in (0, 1)]
    assert told == [alone[0], alone[1], alone[0]] and alone[0] != alone[1]
    other = ask(["sweep=pivotrl_tab4", "rows=full", "update.learning_rate=0.5"], CONF)
    assert hashes(job_of(other, "full", 0)) not in told


def test_overrides_that_no_row_takes_are_refused_with_the_nearest() -> None:
    hashes = RowHashes(CONF)
    with pytest.raises(ConfigError, match=r"trainer\.max_epoch=3: .*did you mean 'max_epochs'\?"):
        hashes.takes(ask(["sweep=pivotrl_tab4", "trainer.max_epoch=3"], CONF))
    with pytest.raises(ConfigError, match="foo=1: there is no key 'foo'"):
        hashes.takes(ask(["sweep=pivotrl_tab4", "foo=1"], CONF))
    hashes.takes(ask(["sweep=pivotrl_tab4", "trainer.max_epochs=3"], CONF))


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
    every = [ask(arguments, CONF) for arguments in [*([f"sweep={name}"] for name in sweep_names(CONF)), *BESIDE]]
    every += [played(of_pilots(asked)) for asked in every if asked.sweep.pilots is not None]
    for asked in every:
        for job in jobs(asked):
            folder = RESULTS / job.name / f"seed{job.seed}"
            if folder in left:
                left.remove(folder)
                found = read_result(folder).config_hash
                changed += [] if found == hashes(job) else [f"{folder}: {found}, its row {job.row} is {hashes(job)}"]
    assert not changed, "\n".join(changed)
    assert not left, f"of no row: {sorted(map(str, left))}"
