from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tests.configuration_files import READ
from turnwise.config.hints import _ELSEWHERE, keys_of, meant

from turnwise.config.check import check_config
from turnwise.config.schema import ConfigError, compose_config

CONF = Path(__file__).parents[3] / "conf"


@pytest.fixture(scope="module")
def tree() -> dict[str, Any]:
    found = OmegaConf.to_container(compose_config(["method=pivotrl"], CONF, read=READ))
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("lr", "update.learning_rate"),
        ("learning_rate", "update.learning_rate"),
        ("learnign_rate", "update.learning_rate"),
        ("LR", "update.learning_rate"),
        ("batch_size", "rollout.states"),
        ("epochs", "trainer.max_epochs"),
        ("steps", "trainer.max_epochs"),
        ("model", "policy.model"),
        ("num_generations", "allocator.group_size"),
        ("beta", "loss.kl_beta"),
        ("max_new_tokens", "rollout.sampling.max_tokens"),
        ("max_tokens", "rollout.sampling.max_tokens"),
        ("lora_r", "policy.lora.r"),
        ("temperature", "rollout.sampling.temperature"),
        ("sed", "seed"),
        ("los", "loss"),
    ],
)
def test_a_word_of_another_library_or_a_leaf_leads_to_its_key(word: str, key: str, tree: dict[str, Any]) -> None:
    assert f"'{key}'" in meant(word, tree)


def test_inside_a_group_only_its_own_keys_are_meant(tree: dict[str, Any]) -> None:
    assert "'update.learning_rate'" in meant("lr", tree, "update")
    assert "update" not in meant("lr", tree, "states")


def test_a_part_that_the_run_does_not_use_is_said_to_be_so(tree: dict[str, Any]) -> None:
    without = {**tree, "allocator": None}
    assert "'allocator.group_size'" in meant("num_generations", without)


def test_every_key_of_the_table_exists(tree: dict[str, Any]) -> None:
    assert set(_ELSEWHERE) <= set(keys_of(tree))
    words = [word for line in _ELSEWHERE.values() for word in line.split()]
    assert len(words) == len(set(words))


@pytest.mark.parametrize("override", ["+foo=1", "+logger.foo=1", "+callbacks.mine={a: 1}"])
def test_what_nothing_reads_cannot_be_appended(override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config(["method=sft", override], CONF, read=READ))
    assert [mistake.split(":")[0] for mistake in refused.value.mistakes] == [override.lstrip("+").split("=")[0]]
