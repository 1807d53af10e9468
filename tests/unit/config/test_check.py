from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from omegaconf import OmegaConf
from tests.configuration_files import READ
from turnwise.config.hints import suggest
from turnwise.config.type_annotations import describe, matches

from turnwise.config.check import check_config
from turnwise.config.schema import ConfigError, compose_config

CONF = Path(__file__).parents[3] / "conf"


def mistakes(*overrides: str) -> list[str]:
    method = [] if any(item.startswith("method=") for item in overrides) else ["method=grpo"]
    with pytest.raises(ConfigError) as caught:
        check_config(compose_config([*method, *overrides], CONF, read=READ))
    return caught.value.mistakes


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+loss.clip_hgih=.3", "loss.clip_hgih: Clipped has no such parameter; did you mean 'clip_high'?"),
        ("+allocator.budget=3", "allocator.budget: Uniform has no such parameter; choose one of group_size"),
        (
            "allocator=trace predictor=tiny allocator.budget=1",
            "allocator: budget must be at least 2, the smallest group",
        ),
        ("update.offload=true", "update: offload moves the layer inputs that recompute stores"),
        ("policy.lora.r=100000", "policy.lora: r must be a rank from 0"),
        ("update.learning_rate=inf", "update.learning_rate: must be a finite number, got inf"),
        ("method=pivotrl states.lambda_diff=7", "states: lambda_diff must be above 0 and at most 1"),
        ("policy.lora.dropout=0.1", "policy.lora: dropout must be 0"),
        ("+gate.depth=3", "gate.depth: Never has no such parameter; leave out this key"),
        ("loss.clip_high=abc", "loss.clip_high: expected float, got 'abc'"),
        ("loss.ratio=tokn", "loss.ratio: expected one of token, sequence, action, got 'tokn'"),
        ("loss.aggregation=sum", "loss.aggregation: expected one of seq_mean_token_mean, "),
        ("allocator.group_size=2.5", "allocator.group_size: expected int, got 2.5"),
        ("allocator.group_size=true", "allocator.group_size: expected int, got True"),
        ("allocator.group_size=null", "allocator.group_size: expected int, got None"),
        ("allocator.group_size=0", "allocator: group_size must be at least 1, got 0"),
        ("rollout.sampling.top_p=2", "rollout.sampling: top_p must be in (0, 1], got 2"),
        ("rollout.trajectories=9", "rollout: trajectories (9) must be at most states (8)"),
        ("rollout.turns=x", "rollout.turns: expected int or null, got 'x'"),
        ("loss.aggregation=constant", "loss: constant_length and aggregation=constant"),
        ("env.mistakes.idle=2", "env.mistakes: mistakes.idle: must be in [0, 1], got 2"),
        ("eval.tasks=???", "eval.tasks: this key has no value; set eval.tasks=..."),
        ("~eval.tasks", "eval.tasks: EvaluationSettings requires this parameter; set eval.tasks=..."),
        (
            "gate._target_=turnwise.algo.gates.rules.Nver",
            "gate._target_: module 'turnwise.algo.gates.rules' does not define 'Nver'",
        ),
        ("+trainer.max_epoch=3", "trainer.max_epoch: Trainer has no such parameter; did you mean 'max_epochs'?"),
        ("trainer.max_epochs=many", "trainer.max_epochs: expected int or null, got 'many'"),
        (
            "+engine.batch=3",
            "engine.batch: Lanes has no such parameter; choose one of copy, end_ids, lanes, memory_gb, prefill_tokens",
        ),
    ],
)
def test_one_mistake_is_one_message(override: str, message: str) -> None:
    found = mistakes(*override.split())
    assert len(found) == 1
    assert found[0].startswith(message)


def test_a_key_that_yaml_reads_as_a_truth_value_is_told() -> None:
    cfg = OmegaConf.create({"gate": {"_target_": "turnwise.algo.gates.rules.Never", False: 1}})
    with pytest.raises(ConfigError, match=r"^gate.False: Never has no such parameter; "):
        check_config(cfg)


def test_every_mistake_is_listed_at_once() -> None:
    found = mistakes(
        "loss.clip_low=-1",
        "loss.clip_high=-2",
        "loss.kl_estimator=k4",
        "+loss.clip=1",
        "env.horizon=long",
        "eval.tasks=???",
        "data.good=3",
    )
    assert [line.split(":")[0] for line in found] == [
        "eval.tasks",
        "env.horizon",
        "data",
        "loss.clip",
        "loss.kl_estimator",
        "loss",
        "loss",
    ]
    assert "clip_low" in found[-2]
    assert "clip_high" in found[-1]


def test_the_message_lists_them() -> None:
    error = ConfigError(["a: one", "b: two"])
    assert str(error) == "2 mistakes in the configuration:\n  - a: one\n  - b: two"
    assert str(ConfigError(["a: one"])) == "a: one"


def test_a_broken_reference_names_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^data\.file: Interpolation key 'nmae' not found$"):
        check_config(OmegaConf.create({"data": {"file": "${nmae}"}}))


def test_lists_of_parts_are_walked() -> None:
    cfg = OmegaConf.create({"items": [{"deep": {"_target_": "turnwise.algo.gates.rules.Never", "x": 1}}]})
    with pytest.raises(ConfigError, match=r"items\.0\.deep\.x: Never has no such parameter"):
        check_config(cfg)


@pytest.mark.parametrize(
    ("value", "annotation", "fits"),
    [
        (1, float, True),
        (True, float, False),
        (1.0, int, False),
        ("x", str, True),
        (None, int | None, True),
        ({"_target_": "a.b"}, int, True),
        ([1, 2], list[int], True),
        ([1, "x"], Sequence[int], False),
        ([1, 2], tuple[int, int], True),
        ([1], tuple[int, int], False),
        ([1, 2, 3], tuple[int, ...], True),
        ("ab", Sequence[str], False),
        ({"a": 1}, Mapping[str, int], True),
        ({"a": "b"}, dict[str, int], False),
        ("x", Path, True),
        (1, Literal["1"], False),
        (object(), Any, True),
    ],
)
def test_values_fit_types_as_yaml_writes_them(value: object, annotation: object, fits: bool) -> None:
    assert matches(value, annotation) is fits


def test_types_are_put_in_words() -> None:
    assert describe(Literal["a", "b"]) == "one of a, b"
    assert describe(int | None) == "int or null"
    assert describe(list[int]) == "a list of int"
    assert describe(Mapping[str, int]) == "a mapping"


def test_the_nearest_name_or_all_of_them() -> None:
    assert suggest("pivtorl", ["pivotrl", "sft"]) == "; did you mean 'pivotrl'?"
    assert suggest("zzz", ["b", "a"]) == "; choose one of a, b"


@pytest.mark.parametrize("part", ["data", "rollout", "update", "policy", "trainer"])
def test_parts_that_no_run_can_do_without(part: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config(["method=sft", f"~{part}"], CONF, read=READ))
    assert any(mistake.startswith(f"{part}: ") for mistake in refused.value.mistakes)
