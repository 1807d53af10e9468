from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf
from tests.configuration_files import READ

from turnwise.config.schema import ConfigError, compose_config
from turnwise.errors import InputError
from turnwise.runs.run_folder import claim, config_hash

# -- run folder --------------------------------------------------------------------------------------------------------

CONF = Path(__file__).parents[3] / "conf"
RESULT = '{"method": "sft", "env": "household", "scale": "tiny", "seed": 0, "in_domain": {}}'


def config(out: Path, **changes: object) -> DictConfig:
    tree = {
        "name": "a",
        "seed": 0,
        "fresh": False,
        "paths": {"out": str(out)},
        "loss": {"clip_high": 0.2},
        "judge": None,
        "logger": {"wandb": {"project": "x"}},
        "trainer": {"max_epochs": 4, "log_every_n_steps": 1},
    }
    cfg = OmegaConf.create(tree)
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    return cfg


def trained(cfg: DictConfig) -> None:
    """A run that has saved a checkpoint."""
    with claim(cfg):
        checkpoints = Path(cfg.paths.out) / "checkpoints"
        checkpoints.mkdir(exist_ok=True)
        (checkpoints / "last.ckpt").write_text("saved")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


def test_the_first_run_records_itself_and_the_same_one_resumes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with claim(config(out)) as first:
        assert (first.resumed, first.finished) == (False, False)
        (out / "checkpoint").write_text("kept")
    with claim(config(out, eval__every=5)) as second:  # a run that is looked at more often is no other one
        assert (second.resumed, second.finished) == (True, False)
        assert (out / "checkpoint").read_text() == "kept"
        (out / "result.json").write_text(RESULT)
    with claim(config(out)) as third:
        assert third.finished


def test_another_configuration_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained(config(out))
    recorded = (out / "config.yaml").read_text()
    with pytest.raises(ConfigError) as caught, claim(config(out, loss__clip_high=0.3, trainer__max_epochs=8)):
        pass
    text = str(caught.value)
    assert f"{out} contains a run of another configuration" in text
    assert "loss.clip_high: 0.2 in the other run, 0.3 in this run" in text
    assert "iterations: 4 in the other run, 8 in this run" in text
    assert "name=" in text
    assert "fresh=true" in text and "policy.start" not in text
    with pytest.raises(ConfigError, match=f"policy.start={out / 'adapter'}"), claim(config(out, trainer__max_epochs=8)):
        pass
    assert (out / "config.yaml").read_text() == recorded


def test_names_paths_and_loggers_are_no_other_configuration(tmp_path: Path) -> None:
    shown = {
        "name": "b",
        "logger__wandb__project": "y",
        "eval__every": 9,
        "trainer__log_every_n_steps": 9,
        "fresh": True,
    }
    assert config_hash(config(tmp_path / "elsewhere", **shown)) == config_hash(config(tmp_path))
    for change in ({"seed": 1}, {"loss__clip_high": 0.3}, {"trainer__max_epochs": 5}, {"eval__tasks": 8}):
        assert config_hash(config(tmp_path, **change)) != config_hash(config(tmp_path))


def test_fresh_puts_the_old_run_aside_and_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for n in range(3):
        with claim(config(out, fresh=n > 0, seed=n)) as folder:
            assert not folder.resumed
            (out / "mark").write_text(str(n))
    assert {path.parent.name: path.read_text() for path in tmp_path.glob("*/mark")} == {
        "run": "2",
        "run.old-1": "0",
        "run.old-2": "1",
    }


def test_a_requeued_job_goes_on_though_its_command_says_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    for restarts, resumed in ((None, False), ("0", False), ("1", True), ("2", True)):
        if restarts is not None:
            monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
        with claim(config(out, fresh=True)) as folder:
            assert folder.resumed == resumed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.old-1"]


def test_checkpoints_of_nobody_knows_which_run_are_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match=r"checkpoints .*config.yaml.*remove"), claim(config(tmp_path)):
        pass
    assert not (tmp_path / "config.yaml").exists()


def test_what_a_killed_start_was_writing_is_cleared_away(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with claim(config(out)):
        (out / "checkpoints").mkdir()
        (out / "checkpoints" / ".last.ckpt.123.part").write_text("half")
        (out / "checkpoints" / ".last.ckpt.part").mkdir()  # of a checkpoint in shards
        (out / "checkpoints" / ".last.ckpt.part" / "__0_0.distcp").write_text("half")
        (out / "checkpoints" / "last.ckpt").write_text("whole")
    with claim(config(out)):
        assert [path.name for path in (out / "checkpoints").iterdir()] == ["last.ckpt"]


def _take_turns(out: Path, turns: int) -> None:
    cfg = OmegaConf.create({"fresh": False, "paths": {"out": str(out)}})
    deadline = time.monotonic() + 60
    while turns:
        try:
            with claim(cfg):
                (out / "mine").touch(exist_ok=False)
                (out / "mine").unlink()
                turns -= 1
        except ConfigError:
            assert time.monotonic() < deadline


def test_of_many_processes_one_at_a_time_has_the_folder(tmp_path: Path) -> None:
    """They claim and let go as fast as they can; who has the folder makes a file that nobody else may find there."""
    processes = multiprocessing.get_context("fork")
    racers = [processes.Process(target=_take_turns, args=(tmp_path / "run", 25)) for _ in range(6)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * 6
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_other_ranks_share_the_first_ones_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = config(tmp_path / "run")
    with claim(cfg):
        monkeypatch.setitem(os.environ, "LOCAL_RANK", "1")
        with claim(cfg) as folder:
            assert folder.path == tmp_path / "run"


def part(target: str) -> DictConfig:
    return OmegaConf.create({"gate": {"members": [{"_target_": target, "k": 3}]}, "advantage": {"_target_": target}})


def test_moved_code_is_the_same_run_and_another_part_or_default_is_not() -> None:
    first = config_hash(part("turnwise.methods.awpo.Awpo"))
    assert first == config_hash(part("turnwise.methods.Awpo")) == config_hash(part("turnwise_study.deep.in.it.Awpo"))
    others = ("turnwise.methods.awpo.Gigpo", "mine.Awpo", "other.Awpo", "turnwise_mine.Awpo")
    assert len({first, *(config_hash(part(other)) for other in others)}) == 5
    cfg = compose_config(["method=pivotrl"], CONF, read=READ)
    for override in ("states.refresh=0.5", "rollout.staleness=1", "+rollout.new_key=0"):
        assert config_hash(compose_config(["method=pivotrl", override], CONF, read=READ)) != config_hash(cfg)


def test_the_names_of_parts_are_unique_where_they_stand() -> None:
    """Classes of one name, like the mistakes of each world's experts, stand only inside of different parts."""
    targets: dict[tuple[str, ...], set[str]] = {}

    def walk(node: Any, *place: str) -> None:
        if isinstance(node, dict):
            target = str(node.get("_target_", ""))
            if target:
                targets.setdefault((*place, target.rpartition(".")[2]), set()).add(target)
            for key, value in node.items():
                walk(value, *((target, key) if target else (*place, key)))

    for path in sorted(CONF.glob("*/*.yaml")):
        if path.parent.name not in ("sweep", "experiment"):
            walk(yaml.safe_load(path.read_text()), path.parent.name)
    assert len(targets) > 60 and all(len(found) == 1 for found in targets.values()), targets


# -- folder ends -------------------------------------------------------------------------------------------------------


def ended(cfg: DictConfig, error: BaseException, *files: str) -> None:
    """A start that writes ``files`` and ends in ``error``."""
    with claim(cfg):
        for name in files:
            path = Path(cfg.paths.out) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("written")
        raise error


@pytest.mark.parametrize("error", [RuntimeError("of a library"), InputError("of a person"), KeyboardInterrupt()])
def test_any_end_without_a_trace_of_work_gives_the_folder_back(tmp_path: Path, error: BaseException) -> None:
    out = tmp_path / "run"
    with pytest.raises(type(error)):
        ended(config(out, seed=1), error, "report.html", "engine/vllm.log", "wandb/offline-run/run.wandb")
    assert list(out.iterdir()) == []
    with claim(config(out, seed=2)) as folder:
        assert not folder.resumed


def test_what_a_start_that_ended_early_has_measured_is_kept_for_the_same_command(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for _ in range(2):
        with pytest.raises(RuntimeError):
            ended(config(out, seed=1), RuntimeError(), "evaluation/base.jsonl")
        assert (out / "evaluation" / "base.jsonl").read_text() == "written"
    with claim(config(out, seed=2)) as corrected:
        assert not corrected.resumed
        assert [path.name for path in out.iterdir()] == ["config.yaml"]
    assert (tmp_path / "run.old-1" / "evaluation" / "base.jsonl").read_text() == "written"


def test_a_run_with_a_checkpoint_keeps_its_folder_and_a_killed_start_is_put_aside(tmp_path: Path) -> None:
    killed, trained = tmp_path / "killed", tmp_path / "trained"
    program = (
        "import os, sys\nfrom omegaconf import OmegaConf\nfrom turnwise.runs.run_folder import claim\n"
        "with claim(OmegaConf.load(sys.argv[1])):\n    os.kill(os.getpid(), 9)\n"
    )
    OmegaConf.save(config(killed, seed=1), tmp_path / "cfg.yaml")
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "cfg.yaml")], check=False)
    with claim(config(killed, seed=1)) as folder:
        assert folder.resumed
    with claim(config(killed, seed=2)) as folder:
        assert not folder.resumed and (tmp_path / "killed.old-1").exists()
    with pytest.raises(InputError):
        ended(config(trained, seed=1), InputError("later"), "checkpoints/last.ckpt")
    with pytest.raises(ConfigError, match="seed: 1 in the other run, 2 in this run"), claim(config(trained, seed=2)):
        pass
    with claim(config(trained, seed=1)) as folder:
        assert folder.resumed
    assert (trained / "checkpoints" / "last.ckpt").read_text() == "written"


@pytest.mark.parametrize(
    "damaged",
    [b"\x00\xff\xfe\x80", b"- a\n- b\n", b"name: 'cut", b"17"],
    ids=["binary", "list", "cut", "number"],
)
def test_a_damaged_record_is_one_line_and_fresh_puts_it_aside(tmp_path: Path, damaged: bytes) -> None:
    out = tmp_path / "run"
    with claim(config(out)):
        pass
    (out / "config.yaml").write_bytes(damaged)
    with pytest.raises(ConfigError) as refused, claim(config(out)):
        pass
    told = str(refused.value)
    assert str(out) in told and "fresh=true" in told and told.isascii() and len(told) < 4000
    assert (out / "config.yaml").read_bytes() == damaged
    with claim(config(out, fresh=True)) as folder:
        assert not folder.resumed
    assert (tmp_path / "run.old-1" / "config.yaml").read_bytes() == damaged


@pytest.mark.parametrize("result", ["{}", "[]", "null", '{"method": "sft"}', "{", "\x00"])
def test_what_is_no_result_is_not_finished(tmp_path: Path, result: str) -> None:
    out = tmp_path / "run"
    with claim(config(out)):
        (out / "result.json").write_text(result)
    with claim(config(out)) as folder:
        assert folder.resumed
        assert not folder.finished
