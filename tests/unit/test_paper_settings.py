"""What the papers print of their settings, beside what a row of a table has, and what a user gets by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.overrides import group_options
from turnwise.config.schema import compose_config
from turnwise.shipped import WORLDS
from turnwise_study.sweeps.jobs import job_of, read_sweep_request

# -- paper settings ----------------------------------------------------------------------------------------------------

CONF = Path(__file__).parents[2] / "conf"
TRACE = {  # App. E.3
    "update.learning_rate": 1e-6, "update.clip_norm": 1.0, "loss.kl_beta": 0.0, "loss.clip_low": 0.2,
    "loss.clip_high": 0.28, "policy.lora.r": 0, "trainer.num_nodes": 2, "trainer.devices": 8, "rollout.sampling.top_p": 1.0,
}  # fmt: skip
QUESTIONS = {
    "env.horizon": 5,
    "env.calls": "boxed",
    "env.score": "f1",
    "rollout.max_length": 2048 + 6144,
    "rollout.sampling.temperature": 1.0,
    "eval.attempts": 1,
}
MATHS = {"env.horizon": 5, "rollout.max_length": 2048 + 14336, "rollout.sampling.temperature": 0.6, "eval.attempts": 4,
         "eval.attempts_of.aime24": 32, "eval.attempts_of.amc23": 16, "env.calls": "boxed"}  # fmt: skip
FUNCTIONS = {
    "env.horizon": 40, "rollout.max_length": 12800 + 8192, "rollout.sampling.temperature": 0.9, "eval.attempts": 4,
    "eval.tasks": 160,  # a fifth of 800
}  # fmt: skip
PREDICTOR = {  # App. E.6
    "predictor.model": "Qwen/Qwen3-0.6B", "predictor.layers": None, "predictor.learning_rate": 3e-5, "predictor.epochs": 2,
    "predictor.prefix_share": 0.06,
}  # fmt: skip
TREES = {"rollout.states": 512, "allocator.expansion": 2}
FLAT = {"rollout.states": 256, "allocator.group_size": 8, "predictor": None}
MATHS_PREDICTOR = {**PREDICTOR, "predictor.learning_rate": 1.5e-5, "predictor.epochs": 4}
AWPO = {  # Table 6
    "rollout.states": 256, "update.steps": 256 // 64, "rollout.sampling.max_tokens": 2048, "update.learning_rate": 1e-6,
    "eval.every": 15, "policy.lora.r": 0, "trainer.devices": 8, "data.prompt_tokens": 2048,
}  # fmt: skip
JUDGED = {
    "allocator.group_size": 8, "loss.kl_beta": 0.0, "advantage.alpha_base": 0.5, "advantage.alpha_prio": 1.5,
    "advantage.clip_min": 0.18, "advantage.clip_max": 0.20,
}  # fmt: skip
SELECTIVE = {  # Table 6, tier 3
    "policy.model": "Qwen/Qwen2.5-7B-Instruct", "policy.lora.r": 16, "policy.lora.alpha": 32, "update.learning_rate": 5e-5,
    "rollout.states": 10, "allocator.group_size": 8, "rollout.sampling.temperature": 0.7, "iterations": 60,
    "eval.every": 10, "env.horizon": 30, "env.prompt": "react",
}  # fmt: skip
GATE = {"gate.k": 10, "gate.threshold": 0.12}
PIVOTRL = {  # App. A.2
    "policy.model": "Qwen/Qwen3-30B-A3B-Thinking-2507", "rollout.states": 64, "iterations": 130, "eval.attempts": 3,
}  # fmt: skip
TURNS = {"allocator.group_size": 16, "rollout.turns": 1}
# the ratio of a whole action or response, and the mean over all of them: PivotRL Eqs. 7-8, AWPO Eq. 25 and Algorithm 1
RESPONSES = {"loss.ratio": "action", "loss.aggregation": "turn_mean_token_mean", "advantage.zero_variance": "keep"}
REINFORCE = {  # Selective Rollout, Sec. 2.1 and App. C.2
    "loss.ratio": "none", "loss.aggregation": "constant", "loss.constant_length": 1, "advantage.zero_variance": "keep",
}  # fmt: skip

ROWS = {  # sweep/row at the paper's scale
    "trace_tab5/trace_8b": TRACE | QUESTIONS | PREDICTOR | TREES | {"allocator.budget": 1024},
    "trace_tab5/grpo_8b": TRACE | QUESTIONS | FLAT,
    "trace_tab5/pcl_8b": TRACE | QUESTIONS | PREDICTOR | {"rollout.states": 512, "allocator.prompts": 256},
    "trace_tab5/treepo_8b": TRACE | QUESTIONS | {"rollout.states": 256, "allocator.roots": 4, "allocator.branches": 2},
    "trace_tab5/trace_fc_14b": TRACE | FUNCTIONS | PREDICTOR | {"rollout.states": 256, "allocator.budget": 512},
    "trace_tab5/grpo_fc_8b": TRACE | FUNCTIONS | {"rollout.states": 128, "allocator.group_size": 8},
    "trace_tab4/trace_8b": TRACE | MATHS | MATHS_PREDICTOR | {"rollout.states": 256, "allocator.budget": 512},
    "trace_tab4/grpo_14b": TRACE | MATHS | {"rollout.states": 128, "allocator.group_size": 8},
    "trace_tab4/pcl_8b": TRACE | MATHS | MATHS_PREDICTOR | {"rollout.states": 256, "allocator.prompts": 128},
    "awpo_tab2/awpo_8b": AWPO | JUDGED | RESPONSES | {"judge.model": "Qwen3-235B-A22B"},
    "awpo_tab2/dapo_4b": AWPO | {"allocator.group_size": 8, "loss.clip_high": 0.28, "advantage.zero_variance": "refill"},
    "awpo_tab3/awpo_8b": AWPO | JUDGED | RESPONSES,
    "selective_tab5/gated": SELECTIVE | REINFORCE | GATE,
    "selective_tab5/baseline": SELECTIVE | REINFORCE,
    "selective_tab4/gated": REINFORCE | GATE | {
        "policy.lora.r": 8, "policy.lora.alpha": 16, "rollout.states": 4, "iterations": 20,
    },
    "pivotrl_tab4/full": PIVOTRL | TURNS | RESPONSES | {"states.k": 16},
    "pivotrl_tab4/sft": PIVOTRL | {"iterations": -(-281_774 // 64), "data.trajectories": 281_774},  # all, once
    "pivotrl_fig1/e2e": PIVOTRL | {"rollout.states": 16, "allocator.group_size": 32, "iterations": 72},
}  # fmt: skip

BY_NAME = {
    "method=trace scale=paper_trace": TRACE | QUESTIONS | PREDICTOR | TREES | {"allocator.budget": None},
    "method=trace scale=paper_trace env=math": TRACE | MATHS,
    "method=trace scale=paper_trace env=bfcl": TRACE | FUNCTIONS,
    "method=grpo scale=paper_trace env=search": TRACE | QUESTIONS | FLAT,
    "method=grpo scale=paper_trace env=search loss=corrected": TRACE,
    "method=awpo scale=paper_awpo": AWPO | JUDGED | RESPONSES,
    "method=toolrl scale=paper_awpo": AWPO | {"allocator.group_size": 8},
    "method=sft scale=paper_awpo": AWPO | {"allocator": None},
    "method=selective scale=paper_selective env=alfworld": SELECTIVE | REINFORCE | GATE,
    "method=grpo scale=paper_selective env=alfworld": SELECTIVE,
    "method=dapo scale=paper_selective": {"advantage.zero_variance": "refill", "loss.clip_high": 0.28},
    "method=pivotrl scale=paper": PIVOTRL | TURNS | RESPONSES | {"states.k": 16},
    "method=sft scale=paper": PIVOTRL,
}  # fmt: skip


def at_paper(name: str) -> DictConfig:
    sweep, _, row = name.partition("/")
    job = job_of(read_sweep_request([f"sweep={sweep}", "scale=paper"], CONF), row, 0)
    return compose_config([word for word in job.overrides if word != job.begin], CONF, read=READ)


def differing(cfg: DictConfig, printed: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    found = {key: OmegaConf.select(cfg, key, throw_on_missing=True) for key in printed}
    return {key: (found[key], value) for key, value in printed.items() if found[key] != value}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_the_papers_settings(name: str) -> None:
    assert differing(at_paper(name), ROWS[name]) == {}


@pytest.mark.parametrize("command", BY_NAME)
def test_so_has_a_method_by_name(command: str) -> None:
    assert differing(compose_config(command.split(), CONF, read=READ), BY_NAME[command]) == {}


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("trace_tab1/uniform_uniform", 90000),  # of HotpotQA's 90,447
        ("trace_tab2/trace_512_6", 90000),
        ("trace_tab5/treepo_14b", 90000),
        ("trace_tab6/trace", 90000),
        ("trace_tab4/trace_14b", 40000),  # of DeepScaleR's 40,315
        ("trace_tab5/pcl_fc_8b", 640),  # four fifths of 800
        ("selective_tab5/baseline", 600),  # 60 x 10
    ],
)
def test_a_row_trains_on_the_papers_tasks_and_not_on_the_tiny_scales_few(name: str, least: int) -> None:
    assert at_paper(name).states.count == least


def test_what_a_scale_sets_belongs_to_an_option_that_exists() -> None:
    request, options = (CONF / "train.yaml").read_text(), group_options(CONF)
    found = [group.split("/")[1:] for group in options if group.startswith("at/")]
    assert found
    for group, scale in found:
        assert f"- optional at/{group}: ${{scale}}/${{{group}}}" in request
        assert scale in options["scale"] and set(options[f"at/{group}/{scale}"]) <= set(options[group])


# -- methods by name ---------------------------------------------------------------------------------------------------


def composed(*overrides: str) -> DictConfig:
    cfg = compose_config(overrides, CONF, read=READ)
    check_config(cfg)
    return cfg


def world(cfg: DictConfig) -> str:
    return str(cfg.env._target_).split(".")[1]


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
