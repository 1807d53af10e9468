"""Values that no part can use: refused by one line that names the key, before anything is built."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests.configuration_files import READ
from turnwise.config.unusable_values import too_large

from turnwise.config.check import check_config
from turnwise.config.overrides import refuse_overrides
from turnwise.config.schema import ConfigError, build, compose_config

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"


@pytest.mark.parametrize(
    "override",
    [
        *(
            "rollout.sampling.temperature=nan",
            "rollout.sampling.temperature=1e-320",
            "rollout.sampling.temperature=1e300",
        ),
        *("advantage.tolerance=inf", "loss.entropy_coef=nan", "loss.kl_beta=inf", "rollout.environment_seconds=inf"),
        *("data.file=", "data.file=' '", "policy.start=", "policy.model=", "policy.lora=null"),
        *(
            "rollout.states=1000000000000000000000",
            "+loss._partial_=true",
            "+loss._partial_=maybe",
            "+loss._recursive_=7",
        ),
        *("+loss._convert_=foo", "name=", "name=..", "name=../../escaped", "name=/absolute", "name=a//b"),
        'name="a\nb"',
    ],
)
def test_a_value_that_no_part_can_use_is_refused_by_its_key(override: str) -> None:
    key = override.lstrip("+").partition("=")[0]
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config([override], CONF, read=READ))
    assert key.rpartition(".")[2] in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["env=apibank", "env.levels=[1,1]"], "levels"),
        (["env=bfcl", "env.subsets=[]"], "subsets"),
        (["env=bfcl", "env.level=public", "env.subsets=[base,base]"], "subsets"),
        (["env=terminal", "env.judge=yes"], "judge"),
        (["env=math", "env.interpreter.limits.memory_mib=1"], "memory_mib"),
        (["env=math", "env.equality.python=/nowhere/python"], "python"),
        (["env=search", "env.retriever=http://host with space/retrieve"], "spaces"),
    ],
)
def test_a_world_refuses_what_it_cannot_use(overrides: list[str], key: str) -> None:
    from turnwise.config.overrides import build_alone

    with pytest.raises(ConfigError, match=key):
        build_alone("env", overrides, CONF)


@pytest.mark.parametrize(
    "argument",
    [
        *("method=[grpo,sft]", "+env=[math,search]", "=1", "method=7", "env=true"),
        *(
            "hydra.run.dir=/proc/x",
            "hydra.job.chdir=true",
            "++hydra.mode=MULTIRUN",
            "hydra.searchpath=[file:///proc/x]",
        ),
    ],
)
def test_several_choices_of_one_group_are_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=argument.lstrip("+").partition("=")[0] or "=1"):
        refuse_overrides([argument], CONF)
    refuse_overrides(["callbacks=[default,gradients]", "engine.urls=[http://one:1,http://two:2]", "method=grpo"], CONF)
    refuse_overrides(["hydra.run.dir=.", "hydra.job.name=train_ddp_process_1"], CONF)


def test_a_group_set_to_null_is_told_how_to_be_left_out() -> None:
    with pytest.raises(ConfigError) as caught:
        refuse_overrides(["seed=1", "logger=null", "gate=null", "debug=null", "data.file=null", "env=null", "-m"], CONF)
    told = [mistake.split(":")[0] for mistake in caught.value.mistakes]
    assert told == ["logger=null", "gate=null", "debug=null", "env=null"]
    for mistake in caught.value.mistakes[:3]:
        check_config(compose_config([mistake.split()[-1]], CONF, read=READ))
    refuse_overrides(["~logger", "data.file=null", "gate=never", f"{'x' * 300}=null"], CONF)


@pytest.mark.parametrize(
    ("override", "remedy"),
    [("~env", "files"), ("~env=household", "files"), ("~allocator", "allocator=none"), ("~gate", "never")],
)
def test_a_group_that_every_run_needs_cannot_be_left_out(override: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_overrides([override], CONF)
    (mistake,) = refused.value.mistakes
    assert mistake.startswith(f"{override.partition('=')[0]}: ") and remedy in mistake


@pytest.mark.parametrize("override", ["~gate", "~trainer", "rollout=null", "update=null"])
def test_a_part_that_every_run_needs_cannot_be_left_out(override: str) -> None:
    key = override.strip("~").removesuffix("=null")
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config([override], CONF, read=READ))
    assert [mistake for mistake in refused.value.mistakes if mistake.startswith(f"{key}:")]


def test_a_part_that_the_run_completes_is_refused_by_its_key(tmp_path: Path) -> None:
    given = {"end_ids": [0], "model": "tiny", "folder": tmp_path, "say": print}
    with pytest.raises(ConfigError, match=r"^engine: lanes must be at least 1"):
        build(compose_config(["engine.lanes=-1"], CONF, read=READ), "engine", **given)
    twice = "engine.urls=[http://127.0.0.1:1,http://127.0.0.1:1/]"
    with pytest.raises(ConfigError, match=r"^engine: urls must contain each server only once"):
        build(compose_config(["engine=vllm", twice], CONF, read=READ), "engine", **given)


@pytest.mark.parametrize("overrides", [["eval.tasks=1000000000000"], ["method=grpo", "states.count=1000000000000"]])
def test_more_tasks_than_can_be_drawn_are_refused(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"1000000,? got"):
        check_config(compose_config(overrides, CONF, read=READ))


def test_an_argument_that_is_nested_too_deeply_is_one_line() -> None:
    argument = f"+x={'[' * 3000}1{']' * 3000}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), argument],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 2 and "nested too deeply" in ended.stderr and "Traceback" not in ended.stderr


def test_folders_of_ones_own_files_are_taken(tmp_path: Path) -> None:
    refuse_overrides([f"hydra.searchpath=['file://{tmp_path}',pkg://theirs.conf, {tmp_path}]"], CONF)


@pytest.mark.parametrize(
    "override",
    [
        *("rollout.max_refills=1000000000", "rollout.environment_seconds=1e300", "allocator.group_size=100000000"),
        *("update.learning_rate=1e30", "eval.items=100000000", "env.horizon=1000000000", "states.k=100000000"),
    ],
)
def test_numbers_with_which_no_run_ends(override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config(["method=pivotrl", override], CONF, read=READ))
    (mistake,) = refused.value.mistakes
    assert mistake.startswith(f"{override.partition('=')[0]}: ")


def test_every_shipped_number_is_within_its_bound() -> None:
    for path in CONF.rglob("*.yaml"):
        if path.parts[-2] not in ("sweep", "launcher", "help"):
            group = path.parent.relative_to(CONF).parts
            alone = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
            assert too_large({group[0]: alone} if group else alone) == [], path  # type: ignore[dict-item, arg-type]
