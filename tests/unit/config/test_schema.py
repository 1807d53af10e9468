from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
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
        ("pivotrl", "loss.clip_high=0.3,method=pivotrl", "pivotrl/loss.clip_high-0.3"),
        ("pivotrl/tab4/full", "method=sft", "pivotrl/tab4/full/method-sft"),
        ("sft", "data.file=/a/b.jsonl,method=sft", "sft/data.file-+a+b.jsonl"),
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


def test_of_two_settings_the_later_in_the_list_of_precedence_wins() -> None:
    def composed(*overrides: str) -> Any:
        return compose_config(overrides, CONF, read=READ)

    assert composed("method=grpo").loss.kl_beta == 0 < composed("method=pivotrl").loss.kl_beta  # part < method
    assert composed("method=selective").rollout.states == 16  # method < scale
    assert composed("method=selective", "scale=paper_selective").rollout.states == 10
    assert composed("method=trace", "scale=paper_trace", "env=math").rollout.max_length == 16384  # scale < its option
    assert composed("scale=qwen3").trainer.devices == 1 < composed("scale=qwen3", "cluster=8gpu").trainer.devices
    typed = composed("scale=qwen3", "cluster=8gpu", "trainer=ddp", "trainer.num_nodes=4")  # all < command line
    assert (typed.trainer.strategy, typed.trainer.num_nodes) == ("ddp", 4)


def test_build_makes_a_part_or_none_and_says_which_key_it_refused() -> None:
    cfg = OmegaConf.create(
        {
            "advantage": {"_target_": "turnwise.methods.awpo.Awpo", "tau_low": 9},
            "gate": {"_target_": "turnwise.methods.gate.Never"},
            "judge": None,
            "later": {"_target_": "fractions.Fraction", "_partial_": True},
        }
    )
    assert build(cfg, "judge") is None
    assert type(build(cfg, "gate")).__name__ == "Never"
    assert build(cfg, "later", numerator=3, somebody_elses=1).numerator == 3
    with pytest.raises(ConfigError) as caught:
        build(cfg, "advantage")
    assert isinstance(caught.value, InputError)


@pytest.mark.parametrize(
    ("env", "anchored", "other"),
    [
        ("household", "demonstrated", "oracle"),
        ("search_hops", "demonstrated", "oracle"),
        ("terminal", "similarity", "effect"),
        ("software", "name", None),
    ],
)
def test_pivotrl_compares_with_the_demonstrated_action_by_default(env: str, anchored: str, other: str | None) -> None:
    def chosen(*overrides: str) -> str | None:
        return compose_config([f"env={env}", *overrides], CONF, read=READ).env.verifier

    assert chosen() == chosen("method=pivotrl") == chosen("method=local") == anchored
    assert chosen("method=sft") == chosen("method=grpo") == other
    assert chosen("method=pivotrl", "env.verifier=effect") == "effect"


def test_debug_runs_differ_by_name_where_they_differ() -> None:
    def name(*overrides: str) -> Any:
        return compose_config(overrides, CONF, read=READ).name

    assert name("method=sft", "debug=tiny") == "debug/sft"
    assert name("method=sft", "debug=tiny", "update.learning_rate=0.01") == "debug/sft/update.learning_rate-0.01"
    assert name("method=sft", "debug=tiny", "seed=3", "name=x") == "x"
    assert name("method=sft", "debug=overfit", "env=apibank") == "debug/overfit/sft/env-apibank"
    assert run_name("a", "debug=x,debugger=y") == "a/debug-x_debugger-y"
    assert run_name("a", "debug=x,debugger=y", "debug") == "a/debugger-y"
