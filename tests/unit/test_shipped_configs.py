"""Every file under conf/ composes, passes the check and names a folder of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.utils import get_object
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.overrides import group_options
from turnwise.config.schema import compose_config

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted(path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*.yaml"))
OPTIONS = group_options(CONF)
PARTS = [f"{group}/{option}" for group, options in OPTIONS.items() for option in options]
PARTS = [part for part in PARTS if not part.startswith(("sweep/", "hydra/", "local/", "at/"))]
METHODS = [f.removeprefix("method/") for f in FILES if f.startswith("method/")]

# a part needs others beside it
WITH = {
    "states/expert_turns": ["reward=exact", "rollout.turns=1"],
    "states/pivots": ["reward=functional", "rollout.turns=1"],
    "reward/exact": ["states=expert_turns", "rollout.turns=1"],
    "reward/functional": ["states=expert_turns", "rollout.turns=1"],
    "reward/graded": ["states=expert_turns", "rollout.turns=1"],
    "reward/toolcalls": ["states=expert_turns", "rollout.turns=1"],
    "advantage/awpo": ["method=awpo"],
    "judge/offline": ["method=awpo"],
    "judge/endpoint": ["method=awpo"],
    "loss/nll": ["method=sft"],
    "allocator/none": ["method=sft"],
    "allocator/trace": ["predictor=tiny"],
    "allocator/pcl": ["predictor=tiny", "rollout.states=128"],
    "gate/predicted": ["predictor=tiny"],
    "reward/none": ["method=sft"],
    "advantage/none": ["method=sft"],
}

NEEDS = {"eval/reasoning": "reasoning_gym"}  # a part that the check builds, and its extra


@pytest.mark.parametrize(
    "part", [pytest.param(part, marks=pytest.mark.extra(NEEDS[part])) if part in NEEDS else part for part in PARTS]
)
def test_every_part_composes_and_passes_the_check(part: str) -> None:
    group, _, option = part.partition("/")
    beside = WITH.get(part, [])
    method = [] if group == "method" or any(word.startswith("method=") for word in beside) else ["method=grpo"]
    check_config(compose_config([f"{group}={option}", *method, *beside], CONF, read=READ))


@pytest.mark.parametrize(("method", "scale"), product(METHODS, ["tiny", "paper"]))
def test_every_method_passes_at_both_scales(method: str, scale: str) -> None:
    cfg = compose_config([f"method={method}", f"scale={scale}"], CONF, read=READ)
    check_config(cfg)
    assert (cfg.method, cfg.scale) == (method, scale)


@pytest.mark.parametrize(("method", "model", "machine"), product(METHODS, ["14b", "30b_a3b"], ["8gpu"]))
def test_every_method_starts_on_every_machine(method: str, model: str, machine: str) -> None:
    overrides = [f"method={method}", "scale=qwen3", f"policy=qwen3_{model}", f"cluster={machine}"]
    cfg = compose_config(overrides, CONF, read=READ)
    check_config(cfg)
    assert (cfg.trainer.devices, cfg.eval.every) == (8, 20)
    assert str(cfg.trainer.strategy._target_).endswith(".FullySharded")


def _calls(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for child in node.values():
            yield from _calls(child)


@pytest.mark.parametrize("file", [f for f in FILES if not f.startswith(("hydra/", "local/"))])
def test_a_part_lists_every_parameter_so_that_the_command_line_can_set_it(file: str) -> None:
    raw = yaml.safe_load((CONF / f"{file}.yaml").read_text()) or {}
    inherits = "defaults" in raw and file != "train"
    for node in _calls(raw):
        if str(node["_target_"]).startswith("turnwise.") and not inherits:
            parameters = inspect.signature(get_object(node["_target_"])).parameters.values()
            given_later = {p.name for p in parameters if p.default is p.empty and node.get("_partial_")}
            assert {p.name for p in parameters} - given_later <= node.keys(), node["_target_"]
