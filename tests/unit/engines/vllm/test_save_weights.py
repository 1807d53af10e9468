"""Snapshots: names that say what they hold, and files that other programs read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from turnwise.engines.vllm_client import save

Make = Callable[..., Any]


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([[5, 6, 7]])).logits
    return found


def test_an_adapter_is_what_peft_reads(make_model: Make, tmp_path: Path) -> None:
    model = make_model("qwen3", lora=True)
    snapshot = save(model, 4, tmp_path)
    assert snapshot.rank and snapshot.folder == (tmp_path / snapshot.name).resolve()
    assert {file.name for file in snapshot.folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    again = PeftModel.from_pretrained(make_model("qwen3", lora=False), snapshot.folder)
    assert torch.allclose(logits(again), logits(model), atol=1e-6)


@pytest.mark.parametrize("shard", [None, "20KB"])
def test_all_weights_are_a_model_with_a_head_of_its_own(
    make_model: Make, tmp_path: Path, shard: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("qwen3", lora=False)
    assert model.config.tie_word_embeddings
    if shard:  # as large models are written
        plain = model.save_pretrained
        monkeypatch.setattr(
            model, "save_pretrained", lambda *args, **given: plain(*args, **given, max_shard_size=shard)
        )
    snapshot = save(model, 0, tmp_path)
    again = AutoModelForCausalLM.from_pretrained(snapshot.folder)
    assert not snapshot.rank and not again.config.tie_word_embeddings
    assert again.lm_head.weight.data_ptr() != again.model.embed_tokens.weight.data_ptr()
    assert torch.equal(logits(again), logits(model))
    assert model.config.tie_word_embeddings  # the policy itself stays as it is


def test_equal_weights_have_equal_names_and_others_have_not(make_model: Make, tmp_path: Path) -> None:
    model = make_model("qwen3", lora=True)
    first = save(model, 0, tmp_path)
    assert save(model, 0, tmp_path) == first
    assert save(model, 1, tmp_path).name.split("-")[1] == first.name.split("-")[1]
    assert (
        save(model, 0, tmp_path / "elsewhere").name != first.name
    )  # a server may still have that one, and its folder be gone
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).add_(0.1)
    assert save(model, 0, tmp_path).name.split("-")[1] != first.name.split("-")[1]
