"""What ``python train.py method=X`` composes to with no other argument, and that a command line still decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import DictConfig
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.schema import compose_config
from turnwise.models.shipped import WORLDS
from turnwise.runs.config_hash import config_hash

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"


def composed(*overrides: str) -> DictConfig:
    cfg = compose_config(overrides, CONF, read=READ)
    check_config(cfg)
    return cfg


def world(cfg: DictConfig) -> str:
    return str(cfg.env._target_).split(".")[2]


@pytest.mark.parametrize(
    ("method", "env", "base"),
    [
        ("sft", "household", "tiny"),
        ("grpo", "household", "tiny"),
        ("pivotrl", "household", "tiny"),
        ("awpo", "apibank", "tiny_thinking"),
        ("toolrl", "apibank", "tiny_thinking"),
        ("mixed", "apibank", "tiny_thinking"),
        ("trace", "search", "tiny_tools"),
        ("selective", "household", "tiny"),
        ("local", "household", "tiny"),
        ("dapo", "household", "tiny"),
        ("dr_grpo", "household", "tiny"),
    ],
)
def test_a_method_alone_acts_in_an_environment_that_its_policy_knows(method: str, env: str, base: str) -> None:
    cfg = composed(f"method={method}")
    assert (world(cfg), cfg.base, cfg.policy.model) == (env, base, base)
    assert env in WORLDS[base]
    assert cfg.name == method


def test_without_a_method_the_main_job_runs() -> None:
    assert composed().method == "pivotrl"
    assert config_hash(composed()) == config_hash(composed("method=pivotrl"))


@pytest.mark.parametrize("method", ["awpo", "toolrl", "mixed"])
def test_methods_that_read_calls_have_experts_that_think_and_no_fixed_format(method: str) -> None:
    cfg = composed(f"method={method}")
    assert cfg.env.thinks is True and cfg.reward.format is None


def test_selective_rollout_has_the_papers_gate_and_groups() -> None:
    cfg = composed("method=selective")
    assert (cfg.gate.k, cfg.gate.threshold, cfg.allocator.group_size) == (10, 0.12, 8)
    assert cfg.env.horizon > cfg.gate.k


@pytest.mark.parametrize(
    ("overrides", "env", "base", "thinks"),
    [
        (["method=awpo", "env=bfcl"], "bfcl", "tiny_tools", False),
        (["method=awpo", "env=apibank"], "apibank", "tiny_tools", False),
        (["method=awpo", "base=tiny_thinking_small"], "apibank", "tiny_thinking_small", True),
        (["method=trace", "env=household"], "household", "tiny", None),
        (["method=trace", "env=math"], "math", "tiny_tools", None),
        (["method=grpo", "env=search"], "search", "tiny_tools", None),
        (["method=grpo", "env=mixture"], "mixture", "tiny_tools", None),
        (["env=search", "base=tiny_llama"], "search", "tiny_llama", None),
        (["scale=tiny_trace", "method=grpo"], "search", "tiny_tools", None),
        (["scale=tiny_composed", "method=trace"], "household", "tiny", None),
    ],
)
def test_what_the_command_line_names_wins(overrides: list[str], env: str, base: str, thinks: bool | None) -> None:
    cfg = composed(*overrides)
    assert (world(cfg), cfg.base, cfg.env.get("thinks")) == (env, base, thinks)


def test_a_model_and_dialogues_of_ones_own_pass() -> None:
    cfg = composed("method=awpo", "policy.model=/my/model", "data.file=my.jsonl")
    assert (cfg.policy.model, cfg.data.file, cfg.reward.format) == ("/my/model", "my.jsonl", None)
    assert cfg.rollout.sampling.max_tokens == 256
