"""Whole runs at the smallest size: a random two-layer policy under the shipped tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from turnwise.config.schema import register
from turnwise.shipped import ASSETS

ROOT = Path(__file__).resolve().parents[2]
if (
    str(ROOT / "benchmarks") not in sys.path
):  # scripts beside one another: their folder is on the path, as when one is run
    sys.path.insert(0, str(ROOT / "benchmarks"))
SMALL = [
    "env.horizon=6",
    "data.trajectories=6",
    "rollout.states=6",
    "rollout.trajectories=null",
    "allocator.group_size=4",
    "rollout.sampling.max_tokens=8",
    "eval.tasks=4",
    "eval.attempts=2",
    "eval.items=3",
    "iterations=3",
    "update.learning_rate=0.01",
    "update.allow_empty=true",  # random weights win nothing, and no update of whole episodes has a sample
]


@pytest.fixture(scope="session")
def random_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in Hugging Face format: the shipped tokenizer over random weights."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=24,
        intermediate_size=64,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    model: Any = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def small(random_policy: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """Overrides of a run that takes seconds, in a folder of its own."""

    def overrides(method: str, *more: str, out: str = "run") -> list[str]:
        kept = [o for o in SMALL if not (method == "sft" and o.startswith("allocator"))]
        everywhere = {
            "pivotrl": ["states.keep=all", "states.k=2"],
            "trace": ["allocator.budget=8", "env=household"],
        }.get(method, [])
        return [
            f"method={method}",
            f"policy.model={random_policy}",
            f"paths.out={tmp_path / out}",
            f"paths.cache={tmp_path / 'cache-'}{out}",
            *kept,
            *everywhere,
            *more,
        ]

    return overrides


@pytest.fixture
def composed() -> Iterator[Callable[[list[str]], DictConfig]]:
    """Overrides -> the configuration that train.py would see."""
    register(ROOT / "conf")
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield lambda overrides: compose("train", [*overrides, "name=test"])
