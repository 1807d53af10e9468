"""The hash that a row's runs would have now, and whether the kept runs have it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from turnwise.config.schema import ConfigError, compose_config
from turnwise.runs.archive import RunPath
from turnwise.runs.result_file import finished, read_result
from turnwise.runs.run_folder import config_hash
from turnwise_study.sweeps import row_hashes as module
from turnwise_study.sweeps.jobs import ask, job_of, jobs, of_pilots, played
from turnwise_study.sweeps.row_hashes import CODE, RowHashes
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


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CONF, tmp_path / "conf"))


def kept(conf: Path, *extra: str, row: str = "full") -> tuple[str, int]:
    """The hash of a row with ``kept.json`` beside the configuration, and how many hashes were computed for it."""
    counted: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "config_hash", lambda cfg: counted.append(cfg) or real(cfg))
        hashes = RowHashes(conf, conf.parent / "cache" / "kept.json")
        found = hashes(job_of(ask(["sweep=pivotrl_tab4", *extra], conf), row, 0))
        hashes.keep()
    return found, len(counted)


real = module.config_hash


def test_kept_hashes_hold_until_anything_that_they_depend_on_changes(conf: Path, monkeypatch: Any) -> None:
    first = kept(conf)
    assert first[1] == 1 and kept(conf) == (first[0], 0)
    assert kept(conf, row="base")[1] == 1 and kept(conf) == (first[0], 0)  # the file holds both
    assert kept(conf, "update.learning_rate=0.5")[0] != first[0]
    loss = next((conf / "loss").glob("*.yaml"))
    text = loss.read_text()
    loss.write_text(text + "\n")
    assert kept(conf) == (first[0], 1)
    loss.write_text(text)
    assert kept(conf) == (first[0], 1) and kept(conf) == (first[0], 0)
    monkeypatch.setattr(module, "CODE", (*CODE, ROOT / "train.py"))
    assert kept(conf) == (first[0], 1)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"state": 1, "hashes": []}', "\x00"])
def test_a_file_that_holds_no_hashes_is_written_anew(conf: Path, text: str) -> None:
    (conf.parent / "cache").mkdir()
    (conf.parent / "cache" / "kept.json").write_text(text)
    found, _ = kept(conf)
    assert kept(conf) == (found, 0)


def test_what_depends_on_more_than_files_and_code_is_not_kept(conf: Path) -> None:
    for extra in ("policy.model='${oc.env:HOME}'", f"hydra.searchpath=[{conf}]"):
        assert kept(conf, extra)[1] == kept(conf, extra)[1] == 1
    used = {name for path in CONF.rglob("*.yaml") for name in re.findall(r"\$\{\s*([\w.]+):", path.read_text())}
    assert used <= {
        "run_name",
        "launchers",
        "verifier",
        "oc.env",
        "hydra",
    }  # a hash that needs the last one cannot be computed here
    assert not any("searchpath" in path.read_text() for path in CONF.rglob("*.yaml"))


def test_a_place_that_cannot_be_written_is_passed_over(conf: Path) -> None:
    (conf.parent / "cache").write_text("a file")
    assert kept(conf)[1] == kept(conf)[1] == 1


def test_every_line_of_ours_that_makes_a_hash_is_told_apart() -> None:
    ran: set[Path] = set()

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and "/src/turnwise" in frame.f_code.co_filename:
            ran.add(Path(frame.f_code.co_filename).resolve())

    job = job_of(ask(["sweep=pivotrl_tab4"], CONF), "full", 0)
    hashes = RowHashes(CONF)
    sys.setprofile(note)
    try:
        hashes(job)
    finally:
        sys.setprofile(None)
    assert len(ran) > 2  # schema, identity and hashes at least
    assert not {path for path in ran if not any(path == root or root in path.parents for root in CODE)}


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
