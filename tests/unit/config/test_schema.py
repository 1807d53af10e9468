from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from tests.configuration_files import READ

from turnwise.config.schema import LONGEST_NAME, ConfigError, build, compose_config, run_name
from turnwise.errors import InputError

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize(
    ("preset", "overrides", "expected"),
    [
        ("grpo", "", "grpo"),
        ("pivotrl", "method=pivotrl", "pivotrl"),
        ("pivotrl", "loss.clip_high=0.3,method=pivotrl", "pivotrl/loss.clip_high=0.3"),
        ("pivotrl/tab4/full", "method=sft", "pivotrl/tab4/full/method=sft"),
        ("sft", "data.file=/a/b.jsonl,method=sft", "sft/data.file=+a+b.jsonl"),
    ],
)
def test_a_run_is_named_by_its_preset_and_what_differs_from_it(preset: str, overrides: str, expected: str) -> None:
    assert run_name(preset, overrides) == expected


@given(st.text(min_size=1, max_size=400), st.text(min_size=1, max_size=400))
def test_names_fit_a_folder_and_stay_apart(first: str, second: str) -> None:
    names = [run_name("x", f"data.file={text.replace(',', '')}") for text in (first, second)]
    for name in names:
        assert len(name) <= LONGEST_NAME + len("x/")
        assert name.count("/") == 1
    same = first.replace(",", "").replace("/", "+") == second.replace(",", "").replace("/", "+")
    assert (names[0] == names[1]) == same


def test_composing_names_the_run_and_leaves_hydra_as_it_was() -> None:
    before = HydraConfig.instance().cfg
    cfg = compose_config(["method=pivotrl", "loss.clip_high=0.3", "seed=4"], CONF, read=READ)
    assert cfg.paths.out == "outputs/pivotrl/loss.clip_high=0.3/seed4"
    assert "hydra" not in cfg
    assert HydraConfig.instance().cfg is before


def test_precedence_is_command_line_then_experiment_then_method_then_part() -> None:
    assert compose_config(["method=grpo"], CONF, read=READ).loss.kl_beta == 0
    assert compose_config(["method=pivotrl"], CONF, read=READ).loss.kl_beta > 0
    experiment = compose_config(["method=pivotrl states=expert_turns"], CONF, read=READ)
    assert experiment.method == "pivotrl"
    assert experiment.states._target_.endswith("ExpertTurns")
    override = compose_config(
        ["method=pivotrl states=expert_turns", "states=pivots", "states.keep=mixed"], CONF, read=READ
    )
    assert override.states.keep == "mixed"


def test_build_makes_a_part_or_none_and_says_which_key_it_refused() -> None:
    cfg = OmegaConf.create(
        {
            "allocator": {"_target_": "turnwise.algo.allocators.allocator.Uniform", "group_size": 0},
            "gate": {"_target_": "turnwise.algo.gates.rules.Never"},
            "judge": None,
            "later": {"_target_": "fractions.Fraction", "_partial_": True},
        }
    )
    assert build(cfg, "judge") is None
    assert type(build(cfg, "gate")).__name__ == "Never"
    assert build(cfg, "later", numerator=3, somebody_elses=1).numerator == 3
    with pytest.raises(ConfigError, match=r"^allocator: group_size must be at least 1, got 0$") as caught:
        build(cfg, "allocator")
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize(("method", "level"), [("grpo", "token"), ("pivotrl", "action")])
def test_the_importance_weight_belongs_to_the_ratio_that_the_loss_clips(method: str, level: str) -> None:
    cfg = compose_config([f"method={method}", "loss=corrected"], CONF, read=READ)
    assert cfg.loss.correction.level == cfg.loss.ratio == level
