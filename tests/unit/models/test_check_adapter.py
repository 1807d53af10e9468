"""Adapters that are not what they claim to be: one message each, and none is trained."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from tests.unit.models.damage import Damage, config, cut, tensors

from turnwise.models.check_adapter import note_base
from turnwise.models.policy import PolicyError, load_policy
from turnwise.models.shipped import tiny_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_path(), tmp_path / "copy"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter on the shipped policy, as a run leaves it."""
    folder = tmp_path_factory.mktemp("run") / "adapter"
    load_policy(tiny_path(), rank=4, alpha=8)[0].save_pretrained(folder)
    note_base(folder, tiny_path())
    return folder


@pytest.fixture
def adapter(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "adapter"))


WEIGHTS, ABOUT = "adapter_model.safetensors", "adapter_config.json"
ADAPTERS: dict[str, tuple[Damage, str]] = {
    "NaN": (tensors(lambda found: next(iter(found.values())).fill_(float("nan")), WEIGHTS), "lora_"),
    "infinity in one place": (
        tensors(lambda found: found[min(found)].view(-1).__setitem__(1, float("inf")), WEIGHTS),
        "lora_",
    ),
    "beyond all numbers when merged": (
        tensors(lambda found: [value.fill_(1e7) for value in found.values()], WEIGHTS),
        "values above",
    ),
    "missing tensor": (
        tensors(lambda found: found.pop(min(found)), WEIGHTS),
        "only in the adapter or only in the model",
    ),
    "cut": (cut(WEIGHTS, 3000), r"adapter_model\.safetensors"),
    "alpha NaN": (config(ABOUT, lora_alpha=float("nan")), "lora_alpha"),
    "alpha infinite": (config(ABOUT, lora_alpha=float("inf")), "lora_alpha"),
    "alpha of a layer": (config(ABOUT, alpha_pattern={"q_proj": float("nan")}), "q_proj"),
    "rank beyond memory": (config(ABOUT, r=10**9), "r="),
    "whole numbers": (
        tensors(lambda found: found.update({name: value.to(torch.int32) for name, value in found.items()}), WEIGHTS),
        "floating-point",
    ),
    "a pipe beside it": (
        lambda folder: (folder / "base.json").unlink() or os.mkfifo(folder / "base.json"),
        r"base\.json",
    ),
    "a start that changes the base": (config(ABOUT, init_lora_weights="pissa_niter_16"), "init_lora_weights"),
    "a start by data": (config(ABOUT, init_lora_weights="eva"), "init_lora_weights"),
    "other kind": (config(ABOUT, peft_type="LOHA"), "LOHA"),
    "code": (config(ABOUT, megatron_config={"a": 1}, megatron_core="antigravity"), "megatron"),
    "endless pattern": (config(ABOUT, target_modules=r"(\w+\.?)+x"), "regular expression"),
    "no object": (lambda folder: (folder / ABOUT).write_text("[]") and None, r"adapter_config\.json"),
    "no configuration": (lambda folder: (folder / ABOUT).unlink(), r"adapter_config\.json"),
    "another base of the same shape": (config("base.json", spread="0" * 64), "other weights"),
    "another name": (
        lambda folder: (folder / "base.json").unlink() or config(ABOUT, base_model_name_or_path="org/Other-4B")(folder),
        "base_model_name_or_path",
    ),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_broken_adapter_is_one_message(name: str, adapter: Path) -> None:
    damage, said = ADAPTERS[name]
    damage(adapter)
    began = time.process_time()
    with pytest.raises(PolicyError, match=said) as caught:
        load_policy(tiny_path(), start=adapter)
    assert "policy.start" in str(caught.value) and "\n" not in str(caught.value)
    assert time.process_time() - began < 10


def test_an_adapter_knows_its_base_by_its_weights(adapter: Path, model: Path) -> None:
    load_policy(model, start=adapter)  # a copy elsewhere, of another name
    tensors(lambda found: found["model.embed_tokens.weight"][1:].mul_(2))(model)  # all but the row of padding
    with pytest.raises(PolicyError, match="trained on other weights"):
        load_policy(model, start=adapter)
