"""The settings that follow the model, with the commands of the docs pages: models by their names, nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.follow import RULES, followed_settings, size_of
from turnwise.config.schema import compose_config
from turnwise.runs.run_folder import config_hash

CONF = Path(__file__).parents[3] / "conf"


def composed(line: str) -> DictConfig:
    cfg = compose_config([*line.split(), "name=x"], CONF, read=READ)
    check_config(cfg)
    return cfg


@pytest.fixture
def dialogues(tmp_path: Path) -> Path:
    reply = "The table is booked, " * 20
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": reply}]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps({"id": str(n), "messages": messages}) + "\n" for n in range(3000)))
    return file


# command, then the rate, the longest reply, the number type and the iterations
WORLDS = [
    ("method=sft policy.model=Qwen/Qwen3-0.6B", 5e-4, 256, "float32", 63),
    ("method=sft policy.model=Qwen/Qwen3-4B policy.lora.r=0", 2e-5, 256, "float32", 63),
    ("method=pivotrl policy=qwen3_0_6b trainer=gpu", 5e-5, 1024, "bfloat16", 63),
    ("method=pivotrl policy.model=Qwen/Qwen3-4B trainer=gpu", 2e-5, 1024, "bfloat16", 63),
    ("method=grpo policy=qwen3_4b trainer=gpu policy.lora.r=0", 2e-6, 1024, "float32", 113),
    ("method=pivotrl policy=qwen3_30b_a3b trainer=fsdp", 1e-5, 1024, "bfloat16", 63),
    ("method=grpo policy=qwen3_30b_a3b_thinking trainer=fsdp", 1e-5, 4096, "bfloat16", 113),
    ("method=pivotrl policy=smollm2", 1e-4, 256, "float32", 63),
]


@pytest.mark.parametrize(("line", "rate", "reply", "dtype", "iterations"), WORLDS)
def test_in_a_world_settings_follow_the_model(line: str, rate: float, reply: int, dtype: str, iterations: int) -> None:
    cfg = composed(line)
    assert cfg["update"].learning_rate == pytest.approx(rate)
    assert (cfg.rollout.sampling.max_tokens, cfg.policy.dtype) == (reply, dtype)
    assert (cfg.trainer.max_epochs, cfg["eval"]["items"], cfg.scale) == (iterations, 0, "own")
    assert (cfg["update"].recompute, cfg["update"].row_tokens) == ((True, 8192) if "trainer" in line else (False, 2048))


@pytest.mark.parametrize("model", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-4B", "Qwen/Qwen3-30B-A3B", "smollm2"])
def test_with_a_file_lengths_and_iterations_follow_the_file(model: str, dialogues: Path) -> None:
    own = f"policy.model={model} data.file={dialogues}"
    sft, pivotrl = composed(f"method=sft {own}"), composed(f"method=pivotrl {own}")
    assert sft.rollout.sampling.max_tokens == 512 and sft.rollout.max_length == 2048
    assert sft.iterations == 338 and pivotrl.iterations == 85
    assert sft["update"].learning_rate == pytest.approx(10 * pivotrl["update"].learning_rate)
    assert pivotrl.rollout.sampling.max_tokens == (1024 if "Qwen3" in model else 512)  # it thinks
    started = composed(f"method=pivotrl {own} policy.start=outputs/mine/sft/seed0/adapter")
    assert started.rollout.sampling.max_tokens == 512


@pytest.mark.parametrize("line", ["method=sft", "method=pivotrl scale=real", "method=grpo scale=qwen3 policy=qwen3_4b"])
def test_shipped_policies_and_chosen_scales_follow_nothing(line: str) -> None:
    cfg = composed(line)
    assert followed_settings(cfg) == [] and cfg.scale != "own"
    assert config_hash(cfg) == config_hash(OmegaConf.create(OmegaConf.to_container(cfg, resolve=True)))


def test_what_is_set_wins_and_the_others_are_told_with_their_reasons() -> None:
    cfg = composed("method=sft policy.model=Qwen/Qwen3-4B update.learning_rate=3e-5 rollout.sampling.max_tokens=77")
    assert (cfg["update"].learning_rate, cfg.rollout.sampling.max_tokens) == (3e-5, 77)
    keys = [line.strip().partition("=")[0] for line in followed_settings(cfg)[1:]]
    assert set(keys) < set(RULES) and not {"update.learning_rate", "rollout.sampling.max_tokens"} & set(keys)
    assert "iterations" in keys


def test_a_folder_tells_the_size_and_a_tiny_model_trains_as_the_shipped_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"torch_dtype": "float32"}')
    (tmp_path / "model.safetensors").write_bytes(b"0" * 4_000_000)
    assert size_of(str(tmp_path))[0] == pytest.approx(1e6)
    cfg: Any = composed(f"method=grpo policy.model={tmp_path}")
    assert (cfg["update"].learning_rate, cfg.rollout.sampling.max_tokens, cfg.trainer.max_epochs) == (2e-3, 24, 12)
