"""Every file under conf/ composes, passes the check and names a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.schema import compose_config
from turnwise.config.signature import signature_of

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted(path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*.yaml"))
PARTS = [f for f in FILES if "/" in f and not f.startswith(("experiment/", "sweep/", "hydra/", "local/", "at/"))]
EXPERIMENTS = [f.removeprefix("experiment/") for f in FILES if f.startswith("experiment/")]
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
    "advantage/mixed": ["method=mixed"],
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


@pytest.mark.parametrize(("experiment", "scale"), product(EXPERIMENTS, ["tiny", "paper"]))
def test_every_experiment_passes_at_both_scales(experiment: str, scale: str) -> None:
    cfg = compose_config([f"experiment={experiment}", f"scale={scale}"], CONF, read=READ)
    check_config(cfg)
    assert cfg.name.startswith(experiment)


def _calls(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for child in node.values():
            yield from _calls(child)


@pytest.mark.parametrize("file", [f for f in FILES if not f.startswith(("experiment/", "hydra/", "local/"))])
def test_a_part_lists_every_parameter_so_that_the_command_line_can_set_it(file: str) -> None:
    raw = yaml.safe_load((CONF / f"{file}.yaml").read_text()) or {}
    inherits = "defaults" in raw and file != "train"
    for node in _calls(raw):
        if str(node["_target_"]).startswith("turnwise.") and not inherits:
            parameters = signature_of(node["_target_"]).parameters
            given_later = {name for name, p in parameters.items() if p.required and node.get("_partial_")}
            assert parameters.keys() - given_later <= node.keys(), node["_target_"]


@pytest.mark.parametrize("launcher", [f.rpartition("/")[2] for f in FILES if f.startswith("hydra/launcher/")])
def test_launchers_keep_to_submitits_schema(launcher: str) -> None:
    compose_config([f"hydra/launcher={launcher}"], CONF, read=READ)
