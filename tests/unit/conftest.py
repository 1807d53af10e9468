"""Small random models (float32, two layers, grouped-query attention), and a folder of two sweep files to know by heart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 97
TABLE = """
paper: P
entry: Table 1
title: Table 1 of P
seeds: [0, 1]
columns: {score: in_domain.after, other: null}
scales: {paper: scale=paper_p}
rows:
  base: {label: Base, overrides: method=sft iterations=0, numbers: {score: 10.0}}
  ours: {overrides: method=pivotrl, at: {tiny: rollout.states=32}, numbers: {score: 20.0, other: 1.0}}
  big: {overrides: method=grpo, needs: {tiny: one size is shipped, paper: "the corpus: data.file=..."}}
  theirs: {numbers: {score: 30.0}}
directions:
  in_domain.after: [ours > base, ours < theirs, big > base - 2]
"""
FIGURE = """
paper: P
entry: Figure 1
title: Figure 1 of P
rows:
  ours: {same: p_tab1/ours}
  big: {same: p_tab1/big}
"""


def build_model(kind: str, lora: bool, seed: int = 0, head: int = 8) -> Any:
    """A random Qwen3 or Llama with weights far from symmetric, with or without a LoRA whose delta is not zero."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head,
        "intermediate_size": 64,
        "tie_word_embeddings": True,
    }
    model: Any = Qwen3ForCausalLM(Qwen3Config(**shape)) if kind == "qwen3" else LlamaForCausalLM(LlamaConfig(**shape))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    if lora:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, 0.1)
    return model.eval()


@pytest.fixture(params=["qwen3", "llama"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["full", "lora"])
def lora(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of any size are packed (``models.fast_llama.PACKED``)."""
    monkeypatch.setattr("turnwise.models.fast_llama.PACKED", (0, 1 << 30))


@pytest.fixture
def make_model() -> Callable[..., Any]:
    return build_model


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "p_tab1.yaml").write_text(TABLE)
    (tmp_path / "conf" / "sweep" / "p_fig1.yaml").write_text(FIGURE)
    return tmp_path / "conf"
