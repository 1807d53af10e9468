from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.schema import ConfigError, compose_config

CONF = Path(__file__).parents[3] / "conf"
FREE = {"accelerator", "strategy", "devices", "num_nodes", "precision", "max_epochs", "log_every_n_steps"}
FREE |= {"deterministic", "benchmark", "detect_anomaly", "profiler", "sync_batchnorm"}
FIXED = {"reload_dataloaders_every_n_epochs", "num_sanity_val_steps"}


def mistakes(*overrides: str) -> list[str]:
    try:
        check_config(compose_config(["method=sft", *overrides], CONF, read=READ))
    except ConfigError as refused:
        return refused.mistakes
    return []


@pytest.mark.parametrize(
    "override",
    [
        *("trainer.max_epochs=-1", "trainer.max_epochs=null", "trainer.devices=0", "trainer.devices=-1"),
        *("trainer.num_nodes=0", "trainer.accelerator=tpu", "trainer.log_every_n_steps=-3", "trainer.devices=[0]"),
        *("trainer.precision=bf16-true", "trainer.precision=16-mixed"),
    ],
)
def test_values_that_no_trainer_can_carry_out(override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config(["method=sft", override], CONF, read=READ))
    (mistake,) = refused.value.mistakes
    key, _, value = override.partition("=")
    assert mistake.startswith(f"{key}: ")
    assert value.replace("null", "None") in mistake


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.max_epochs=0"],
        ["trainer=gpu", "trainer.devices=[0,1]"],
        ["trainer=gpu", "trainer.devices=-1"],
        ["trainer=fsdp", "trainer.num_nodes=2"],
    ],
)
def test_numbers_that_a_trainer_takes(overrides: list[str]) -> None:
    check_config(compose_config(["method=sft", *overrides], CONF, read=READ))


@pytest.mark.parametrize("key", sorted(set(inspect.signature(Trainer).parameters) - FREE - FIXED))
def test_what_the_run_gives_the_trainer_itself(key: str) -> None:
    (mistake,) = mistakes(f"+trainer.{key}=[1]")
    assert mistake.startswith(f"trainer.{key}: ")


@pytest.mark.parametrize(
    ("override", "place"),
    [
        *(("callbacks=[1]", "callbacks.NAME="), ("logger=true", "logger.NAME="), ("default_root_dir=x", "paths.out")),
        *(("check_val_every_n_epoch=2", "eval.every"), ("max_steps=10", "trainer.max_epochs")),
        *(("gradient_clip_val=1.0", "update.clip_norm"), ("accumulate_grad_batches=2", "update.batch_tokens")),
    ],
)
def test_the_place_where_it_is_set_instead(override: str, place: str) -> None:
    (mistake,) = mistakes(f"+trainer.{override}")
    assert place in mistake


def test_values_that_would_change_what_an_iteration_is() -> None:
    for override in ("reload_dataloaders_every_n_epochs=0", "num_sanity_val_steps=2", "num_sanity_val_steps=false"):
        (mistake,) = mistakes(f"trainer.{override}")
        assert mistake.startswith(f"trainer.{override.partition('=')[0]}: ")
    assert mistakes("+trainer.profiler=simple", "+trainer.deterministic=true") == []
    for override in ("+trainer.profiler=stopwatch", "trainer.strategy=stopwatch"):
        (mistake,) = mistakes(override)
        assert "stopwatch" in mistake


@pytest.mark.parametrize(
    "override",
    [
        *("callbacks.checkpoint=null", "callbacks.checkpoint.save_top_k=0", "callbacks.checkpoint.filename=best"),
        *("callbacks.checkpoint.dirpath=elsewhere", "+callbacks.checkpoint.monitor=loss"),
        *("callbacks.checkpoint.every_n_epochs=0", "callbacks.checkpoint.enable_version_counter=true"),
    ],
)
def test_checkpoints_that_the_next_start_would_not_find(override: str) -> None:
    (mistake,) = mistakes(override)
    assert mistake.startswith(override.lstrip("+").partition("=")[0])
    assert mistakes("callbacks.checkpoint.every_n_epochs=5", "paths.out=elsewhere") == []
