"""Mistakes of configuration as tables: what is typed, the keys that the message names, and the near miss that it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tests.configuration_files import READ

from turnwise.config.check import check_config
from turnwise.config.overrides import explain, refuse_misuse, refuse_overrides
from turnwise.config.schema import ConfigError, compose_config

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf"


def mistakes(line: str) -> list[str]:
    """The mistakes of a command line, as ``train.py`` finds them."""
    arguments = line.split(" ") if line else []
    try:
        refuse_misuse(arguments)
        refuse_overrides(arguments, CONF)
        check_config(compose_config(arguments, CONF, read=READ))
    except ConfigError as error:
        return error.mistakes
    except (HydraException, OmegaConfBaseException) as error:
        return explain(error, arguments, CONF).mistakes
    return []


NAMES = [  # command line, key, near miss
    ("method=pivtorl", "method=pivtorl", "pivotrl"),
    ("method=PivotRL", "method=PivotRL", "'pivotrl'"),
    ("env=mine", "env=mine", "hydra.searchpath"),
    ("policy=mine", "policy=mine", "policy.model=mine"),
    ("env._target_=turnwise_worlds.household.HouseholdEnvv", "env._target_", "'HouseholdEnv'"),
    ("engine=qqq", "engine=qqq", "tree"),
    ("sed=3", "sed=3", "seed"),
    ("los.clip_high=.3", "los.clip_high=.3", "loss"),
    ("advantage.zero_varianc=drop", "advantage.zero_varianc=drop", "zero_variance"),
    ("rollout.samplign.top_p=1", "rollout.samplign.top_p=1", "sampling"),
    ("+loss.clip_hgih=.3", "loss.clip_hgih", "clip_high"),
    ("~loss.clip_hihg", "~loss.clip_hihg", "clip_high"),
    ("+trainer.max_epoch=3", "trainer.max_epoch", "max_epochs"),
    ("+trainer.max_steps=3", "trainer.max_steps", "max_epochs"),
    ("num_train_epochs=3", "num_train_epochs=3", "iterations"),
    ("trainer.total_epochs=3", "trainer.total_epochs=3", "iterations"),
    ("env.horizn=3", "env.horizn=3", "horizon"),
    ("engine.lane=3", "engine.lane=3", "lanes"),
    ("lr=1e-4", "lr=1e-4", "update.learning_rate"),
    ("update.lr=1e-4", "update.lr=1e-4", "update.learning_rate"),
    ("predictor=tiny predictor.lr=1e-4", "predictor.lr=1e-4", "predictor.learning_rate"),
    ("algorithm.kl_ctrl.kl_coef=0.1", "algorithm.kl_ctrl.kl_coef=0.1", "loss.kl_beta"),
    ("data.train_batch_size=8", "data.train_batch_size=8", "rollout.states"),
    ("scale_rewards=false", "scale_rewards=false", "advantage.scale"),
    ("use_vllm=true", "use_vllm=true", "engine=vllm"),
    ("num_generations=8", "num_generations=8", "allocator.group_size"),
    ("actor_rollout_ref.rollout.n=8", "actor_rollout_ref.rollout.n=8", "allocator.group_size"),
    ("max_completion_length=8", "max_completion_length=8", "rollout.sampling.max_tokens"),
    ("method=grpo data.file=x.jsonl", "data.file", "pivotrl"),
    ("temperature=1", "temperature=1", "rollout.sampling.temperature"),
    ("eval.ood=none", "eval.ood=none", "eval.items"),
    ("data.file=[a.jsonl,b.jsonl]", "data.file", "prepare_data"),
    ("loss.ratio=tokn", "loss.ratio", "token"),
    ("loss.aggregation=sum", "loss.aggregation", "token_mean"),
    ("+foo=1", "foo", ""),
    ("+logger.foo=1", "logger.foo", "_target_"),
    ("method=toolrl reward.format=json", "reward.format", "hermes"),
]
VALUES = [  # values of a wrong type or out of range: command line, key
    ("loss.clip_high=abc", "loss.clip_high"),
    ("loss.clip_low=-1", "loss.clip_low"),
    ("loss.kl_beta=-0.1", "loss.kl_beta"),
    ("loss.kl_beta=inf", "loss.kl_beta"),
    ("loss.kl_estimator=k4", "loss.kl_estimator"),
    ("loss.aggregation=constant", "loss"),
    ("loss.aggregation=constant loss.constant_length=0", "loss.constant_length"),
    ("loss=corrected loss.correction.cap=0.5", "loss.correction.cap"),
    ("loss=corrected loss.correction.mask_low=2", "loss.correction.mask_low"),
    ("loss=corrected loss.correction.mask_high=0.5", "loss.correction.mask_high"),
    ("loss=corrected loss.correction.level=turn", "loss.correction.level"),
    ("method=sft loss.aggregation=constant", "loss.aggregation"),
    ("allocator.group_size=2.5", "allocator.group_size"),
    ("allocator.group_size=null", "allocator.group_size"),
    ("allocator.group_size=0", "allocator.group_size"),
    ("method=grpo allocator=treepo allocator.roots=0", "allocator.roots"),
    ("method=grpo allocator=treepo allocator.branches=-1", "allocator.branches"),
    ("method=trace allocator.budget=1", "allocator.budget"),
    ("method=trace allocator.expansion=-1", "allocator.expansion"),
    ("method=trace allocator.root=best", "allocator.root"),
    ("method=grpo allocator=pcl predictor=tiny allocator.prompts=0", "allocator.prompts"),
    ("advantage.eps=-1", "advantage.eps"),
    ("advantage.tolerance=inf", "advantage.tolerance"),
    ("advantage.zero_variance=ignore", "advantage.zero_variance"),
    ("advantage.baseline=median", "advantage.baseline"),
    ("method=awpo advantage.epsilon_mix=0", "advantage.epsilon_mix"),
    ("method=awpo advantage.tau_low=2", "advantage"),
    ("method=awpo advantage.alpha_base=0", "advantage.alpha_base"),
    ("method=awpo advantage.alpha_base=9", "advantage"),
    ("method=awpo advantage.clip_max=0.1", "advantage"),
    ("method=awpo advantage.gate=shut", "advantage.gate"),
    ("method=grpo advantage=turn_credit advantage.gamma=2", "advantage.gamma"),
    ("method=grpo advantage=turn_credit advantage.form=to_go advantage.turn_reward=admissible", "advantage"),
    ("method=grpo advantage=gigpo advantage.omega=-1", "advantage.omega"),
    ("method=grpo advantage=mt_grpo advantage.outcome_weight=-1", "advantage.outcome_weight"),
    ("method=grpo advantage=tree_grpo advantage.intra=cousins", "advantage.intra"),
    ("method=selective gate.k=0", "gate.k"),
    ("method=selective gate.threshold=1.2", "gate.threshold"),
    ("method=grpo gate=either gate.ended=2", "gate.ended"),
    ("method=grpo gate=signal gate.signal=mood", "gate"),
    ("states.k=1", "states.k"),
    ("states.lambda_diff=7", "states.lambda_diff"),
    ("states.keep=some", "states.keep"),
    ("states.refresh=1.0", "states.refresh"),
    ("states.refresh=0.5 states.refresh_most=1", "states.refresh_most"),
    ("method=grpo states.count=1000000000000", "states.count"),
    ("method=grpo reward.of=lost", "reward.of"),
    ("rollout.sampling.top_p=2", "rollout.sampling.top_p"),
    ("rollout.sampling.temperature=nan", "rollout.sampling.temperature"),
    ("rollout.sampling.temperature=1e300", "rollout.sampling"),
    ("rollout.turns=x", "rollout.turns"),
    ("rollout.states=0", "rollout.states"),
    ("rollout.staleness=9", "rollout.staleness"),
    ("rollout.environment_seconds=0", "rollout.environment_seconds"),
    ("update.learning_rate=inf", "update.learning_rate"),
    ("update.decay=1.5", "update.decay"),
    ("update.steps=0", "update.steps"),
    ("update.warmup=-1", "update.warmup"),
    ("update.clip_norm=0", "update.clip_norm"),
    ("update.weight_decay=-1", "update.weight_decay"),
    ("update.learning_rate=0", "update.learning_rate"),
    ("update.batch_tokens=0", "update.batch_tokens"),
    ("policy.lora.r=100000", "policy.lora.r"),
    ("policy.lora=null", "policy.lora"),
    ("policy.model=", "policy.model"),
    ("data.good=3", "data.good"),
    ("data.held_out=0.7", "data.held_out"),
    ("method=grpo engine=vllm engine.url=http://host:80000", "engine.url"),
    ("method=awpo judge=endpoint judge.client.url='http://[::1'", "judge.client.url"),
    ("method=awpo judge=endpoint judge.client.url=http:localhost", "judge.client"),
    ("data.file=", "data.file"),
    ("eval.tasks=1000000000000", "eval.tasks"),
    ("eval.tasks=???", "eval.tasks"),
    ("~eval.tasks", "eval.tasks"),
    ("method=trace predictor.prefix_share=1", "predictor.prefix_share"),
    ("env.mistakes.idle=2", "env.mistakes"),
    ("gate._target_=turnwise.methods.gate.Nver", "gate._target_"),
    ("gate._target_=mine.Gate", "gate._target_"),
    ("gate._target_=.Gate", "gate._target_"),
    ("trainer.max_epochs=many", "trainer.max_epochs"),
    ("trainer.max_epochs=null", "trainer.max_epochs"),
    ("iterations=many", "iterations=many"),
    ("iterations=null", "iterations=null"),
    ("iterations=-1", "iterations"),
    ("trainer.devices=-1", "trainer.devices"),
    ("trainer.devices=[0]", "trainer.devices"),
    ("trainer.accelerator=tpu", "trainer.accelerator"),
    ("trainer.precision=16-mixed", "trainer.precision"),
    ("trainer.strategy=stopwatch", "trainer.strategy"),
    ("trainer.num_sanity_val_steps=2", "trainer.num_sanity_val_steps"),
    ("callbacks.checkpoint.save_top_k=0", "callbacks.checkpoint.save_top_k"),
    ("callbacks.checkpoint.dirpath=elsewhere", "callbacks.checkpoint.dirpath"),
    ("+callbacks.checkpoint.monitor=loss", "callbacks.checkpoint.monitor"),
    ("callbacks.checkpoint=null", "callbacks.checkpoint"),
    ("seed=abc", "seed=abc"),
    ("seed=-1", "seed"),
    ("name=../../escaped", "name"),
    ("name=/absolute", "name"),
    ("data.file=${nmae}", "data.file=${nmae}"),
    ("method", "method"),
    ("method=[grpo,sft]", "method"),
    ("hydra.job.chdir=true", "hydra.job.chdir"),
    *(
        (line, line)
        for line in ("logger=null", "gate=null", "env=null", "~env", "~gate", "~trainer", "method=7", "env=true")
    ),
    (f"+x={'[' * 3000}1{']' * 3000}", f"+x={'[' * 37}..."),
]
CONFLICTS = [  # command line, keys
    ("rollout.trajectories=99", "rollout.trajectories"),
    ("trainer.max_epochs=3", "trainer.max_epochs"),
    ("check=true fresh=true", "check"),
    ("update.offload=true", "update.offload"),
    ("rollout.max_length=24", "rollout.max_length"),
    ("policy.lora.dropout=0.1", "policy.lora.dropout"),
    ("method=local reward=outcome", "rollout.turns"),
    ("method=grpo reward=exact", "reward=exact rollout.turns"),
    ("method=pivotrl states=task_starts", "reward=functional"),
    ("method=grpo advantage=none", "advantage"),
    ("method=grpo allocator=none reward=none", "allocator reward"),
    ("method=sft states=task_starts", "states=task_starts"),
    ("method=sft reward=outcome", "reward"),
    ("method=grpo allocator.group_size=1", "allocator.group_size"),
    ("method=pivotrl policy.lora.r=0", "loss.kl_beta"),
    ("method=pivotrl advantage=awpo judge=offline", "advantage.tau_high"),
    ("method=awpo judge=none", "judge"),
    ("method=toolrl judge=offline", "judge"),
    ("method=grpo reward.of=return advantage=awpo judge=offline", "judge"),
    ("trainer=fsdp engine.copy=false trainer.strategy.offload=true", "engine.copy trainer.strategy.offload"),
    ("trainer=fsdp callbacks=gradients", "callbacks.gradients"),
    ("method=grpo rollout.staleness=1 trainer.devices=2", "rollout.staleness"),
    ("method=trace rollout.staleness=1", "rollout.staleness"),
    ("method=grpo rollout.staleness=1 engine.copy=false", "rollout.staleness"),
    ("method=sft rollout.frozen=64", "rollout.frozen"),
    ("method=grpo rollout.frozen=4", "rollout.frozen"),
    ("method=trace rollout.frozen=256", "predictor"),
    ("method=grpo rollout.frozen=64 rollout.staleness=1", "rollout.staleness"),
    ("method=dapo rollout.frozen=64", "advantage.zero_variance"),
    ("method=pivotrl states.refresh=0.8 rollout.frozen=256", "states.refresh"),
    ("method=pivotrl states.refresh=0.5 states.keep=all", "states.refresh"),
    ("method=pivotrl states.refresh=0.5 rollout.staleness=1", "states.refresh"),
    ("method=sft states=pivots states.refresh=0.5", "states.refresh"),
    ("method=grpo rollout.sampling.temperature=0", "rollout.sampling.temperature"),
    ("method=grpo rollout.sampling.top_p=0.9", "rollout.sampling.top_p"),
    ("method=grpo rollout.sampling.top_k=5", "rollout.sampling.top_k"),
    ("method=grpo rollout.sampling.min_p=1.0", "rollout.sampling.min_p"),
    ("method=trace predictor=none", "allocator=trace"),
    ("method=grpo gate=predicted", "gate=predicted"),
    ("method=grpo rollout.states=4 update.steps=5", "update.steps"),
    ("method=grpo allocator=pcl predictor=tiny", "allocator.prompts"),
    ("method=trace advantage.zero_variance=refill", "advantage.zero_variance"),
    ("method=toolrl predictor=tiny", "predictor.reward_max"),
    ("method=pivotrl allocator=treepo", "allocator.branches"),
    ("method=pivotrl allocator=trace predictor=tiny", "allocator.expansion"),
    ("method=pivotrl gate=divergence", "gate"),
    ("method=grpo engine=vllm rollout.sampling.temperature=2.5", "rollout.sampling.temperature"),
    ("method=sft engine=vllm policy.start=outputs/first", "policy.start"),
    ("loss.clip_low=-1 loss.clip_high=-2 +loss.clip=1 data.good=3", "data.good loss.clip loss.clip_high loss.clip_low"),
    ("method=pivtorl loss.clip_hihg=.3 seed=x loss.clip_low=x", "loss.clip_hihg=.3 loss.clip_low method=pivtorl seed=x"),
]  # fmt: skip
WAYS_OUT = [
    "method=pivotrl policy.lora.r=0 loss.kl_beta=0",
    "method=pivotrl states=expert_turns reward=exact",
    "method=grpo rollout.states=4 update.steps=4",
    "method=sft rollout.staleness=1",
    "method=grpo engine=vllm rollout.staleness=2",
    "method=grpo rollout.frozen=64 gate=divergence advantage.zero_variance=keep",
    "method=trace rollout.frozen=256 allocator=uniform predictor=none",
    "method=pivotrl judge=offline advantage=awpo advantage.tau_low=0.2 advantage.tau_high=0.8",
    "method=pivotrl states.refresh=0.5 states.keep=mixed",
    "method=grpo allocator=pcl predictor=tiny rollout.states=128",
    "method=pivotrl allocator=trace allocator.expansion=0 predictor=tiny",
    "method=sft iterations=0 +trainer.profiler=simple +trainer.deterministic=true",
    "trainer=gpu trainer.devices=[0,1]",
    "trainer=fsdp trainer.num_nodes=2",
    "paths.out=elsewhere callbacks.checkpoint.every_n_epochs=5",
    "~logger data.file=null gate=never",
    "hydra.run.dir=. hydra.job.name=train_ddp_process_1",
    "method=awpo judge=endpoint judge.client.url=http://host:8000/v1/@cf/model judge.client.key_variable=MY_KEY",
]
SECRET = "hunter2"
SECRETS = [  # argument, key
    (f"judge.client.url=http://user:{SECRET}@host/v1", "judge.client.url"),
    (f"judge.client.url=http://user:{SECRET}/x@host/v1", "judge.client.url"),  # the slash ends no password
    (f"judge.client.url=user:{SECRET}@host:80", "judge.client.url"),
    (f"engine.url=http://u:{SECRET}@two:8000", "engine.url"),
    (f"+env.retriever=http://u:{SECRET}@host/retrieve", "env.retriever"),
    (f"http://u:{SECRET}@host", "an argument"),
    (f"judge.client.key_variable=TURNWISE_KEY,sk-{SECRET}", "judge.client.key_variable"),
    (f"judge.client={{url:http://h/v1,key_variable:'{SECRET}'}}", "judge.client.key_variable"),
    (f"judge.clientt={{key_variable:sk-{SECRET}}}", "judge.clientt.key_variable"),
]


@pytest.mark.parametrize(("line", "key", "near"), NAMES)
def test_a_name_that_does_not_exist(line: str, key: str, near: str) -> None:
    (mistake,) = mistakes(line)
    assert mistake.partition(":")[0] == key and near in mistake.removeprefix(key)


@pytest.mark.parametrize(("line", "key"), VALUES)
def test_a_value_that_cannot_be_used(line: str, key: str) -> None:
    (mistake,) = mistakes(line)
    assert mistake.partition(":")[0] == key and "\n" not in mistake


@pytest.mark.parametrize(("line", "keys"), CONFLICTS)
def test_settings_that_cannot_work_together_are_refused_with_the_way_out(line: str, keys: str) -> None:
    assert sorted(mistake.partition(":")[0] for mistake in mistakes(line)) == keys.split(" ")


@pytest.mark.parametrize("line", WAYS_OUT)
def test_the_ways_out_are_open(line: str) -> None:
    assert mistakes(line) == []


def test_a_launcher_that_is_not_installed_says_what_to_install() -> None:
    error = MissingConfigException("", missing_cfg_file="hydra/launcher/submitit_slurm")
    (mistake,) = explain(error, ["-m", "seed=0,1", "hydra/launcher=slurm_8gpu"], CONF).mistakes
    assert "pip install hydra-submitit-launcher" in mistake
    error = MissingConfigException("", missing_cfg_file="hydra/launcher/joblib_3")
    (mistake,) = explain(error, ["-m", "seed=0,1", "hydra/launcher=joblib_3"], CONF).mistakes
    assert "did you mean 'joblib_2'" in mistake


@pytest.mark.parametrize(("argument", "key"), SECRETS)
def test_a_secret_is_refused_by_its_key_and_not_repeated(argument: str, key: str) -> None:
    (mistake,) = mistakes(f"method=awpo judge=endpoint {argument}")
    assert mistake.startswith(f"{key}: ") and SECRET not in mistake


def test_a_secret_of_the_environment_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_URL", f"http://u:{SECRET}@host/v1")
    (mistake,) = mistakes("method=awpo judge=endpoint judge.client.url=${oc.env:MY_URL} judge.client.attempts=0")
    assert mistake.startswith("judge.client.url: ") and SECRET not in mistake


def test_a_part_in_a_list_is_checked() -> None:
    part = {"_target_": "turnwise.methods.gate.Never", "x": 1, False: 1}
    with pytest.raises(ConfigError) as refused:
        check_config(OmegaConf.create({"data": [{"deep": part}]}))
    assert [mistake.partition(":")[0] for mistake in refused.value.mistakes] == ["data.0.deep.x", "data.0.deep.False"]


@pytest.mark.parametrize("preset", ["defaults:\n  - override /states: pivtos\n", "sed: 3\n", "seed: abc\n"])
def test_a_mistake_in_a_file_is_one_line(tmp_path: Path, preset: str) -> None:
    (tmp_path / "conf").symlink_to(CONF)
    (tmp_path / "mine" / "method").mkdir(parents=True)
    (tmp_path / "mine" / "method" / "mine.yaml").write_text(f"# @package _global_\n{preset}")
    arguments = ["method=mine", f"hydra.searchpath=[file://{tmp_path / 'mine'}]"]
    with pytest.raises((HydraException, OmegaConfBaseException)) as caught:
        compose_config(arguments, CONF)
    (mistake,) = explain(caught.value, arguments, CONF).mistakes
    assert "\n" not in mistake


def test_a_typo_is_answered_before_torch_is_imported() -> None:
    code = (
        "import sys; sys.argv = ['train.py', 'method=pivotrl', 'loss.clip_high=abc']\n"
        "try:\n    import train; train.main()\n"
        "except SystemExit as end:\n    assert end.code == 2\n"
        "assert not {'torch', 'transformers', 'lightning'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
