"""Builds from a run's configuration its settings, the method's parts, the base policy, the trainer and the player."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning import Callback, Trainer
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf

from turnwise.config.schema import build
from turnwise.config.settings import (
    DataSettings,
    EvaluationSettings,
    PolicySettings,
    PredictorSettings,
    RolloutSettings,
    UpdateSettings,
)
from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.template_dialect import Dialect, dialect_of
from turnwise.data.toolcalls import PARSERS, Format
from turnwise.data.turns_in_context import TurnInContext
from turnwise.env import check_ready, environments_of
from turnwise.errors import InputError
from turnwise.hub import at_hand
from turnwise.methods.allocate import Allocator
from turnwise.methods.credit import Advantage
from turnwise.methods.gate import Gate
from turnwise.methods.loss import Loss
from turnwise.methods.reward import Reward
from turnwise.methods.states import StateRule
from turnwise.models.attention import unwrapped
from turnwise.models.policy import load_policy
from turnwise.rollouts.player import Player
from turnwise.rollouts.predictor import AnswerProbability, OnlinePredictor, load_predictor
from turnwise.rollouts.probe import check_exact, probe_backbone
from turnwise.rollouts.verdicts import JudgeVerdictReward
from turnwise.shipped import weights_of
from turnwise.training.checkpoints import AtomicCheckpointIO
from turnwise.training.distributed import DistributedContext, environments
from turnwise.types import State


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run, grouped as in ``conf/train.yaml``, and its folders."""

    data: DataSettings
    rollout: RolloutSettings
    update: UpdateSettings
    policy: PolicySettings
    eval: EvaluationSettings
    predictor: PredictorSettings | None
    seed: int
    iterations: int
    folder: Path
    cache: Path  # of files that runs share
    device: torch.device  # on which the policy is evaluated and profiled outside of Lightning's ``fit``

    @classmethod
    def of(cls, cfg: DictConfig) -> Settings:
        groups: dict[str, Any] = {
            name: build(cfg, name) for name in ("data", "rollout", "update", "policy", "eval", "predictor")
        }
        cuda = cfg.trainer.accelerator in ("gpu", "cuda", "auto") and torch.cuda.is_available()
        return cls(
            **groups,
            seed=int(cfg.seed),
            iterations=int(cfg.trainer.max_epochs),
            folder=Path(cfg.paths.out),
            cache=Path(cfg.paths.cache),
            device=torch.device("cuda" if cuda else "cpu"),
        )

    def fitting(self, model: Any) -> Settings:
        """Returns the settings with rows and micro-batches whose activations fit into ``update.memory_gb`` on a CPU."""
        update = self.update
        if update.memory_gb is None or update.recompute or self.device.type != "cpu":
            return self
        config = unwrapped(model).config.get_text_config()
        of_token = kept_of_token(config, next(model.parameters()).element_size())
        fits = max(256, int(update.memory_gb * 1e9 / (of_token * torch.get_num_threads())))
        # short rows fill half a row's limit: the process grows by about twice what autograd keeps of them
        rows, batches = min(update.row_tokens, fits), min(update.batch_tokens, max(256, fits // 2))
        return replace(self, update=replace(update, row_tokens=rows, batch_tokens=batches))


def kept_of_token(config: Any, item: int) -> int:
    """The bytes that autograd keeps of a token in all layers, without the attention of long rows, if a number has
    ``item`` bytes. Counted in Llama and Qwen3 with LoRA on all linear layers; of experts, those that a token passes.
    """
    wide = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    if passed := getattr(config, "num_experts_per_tok", None):
        wide = passed * (getattr(config, "moe_intermediate_size", None) or wide)
    return int(config.num_hidden_layers * (8 * config.hidden_size + 4 * wide) * item)


@dataclass(frozen=True, slots=True)
class BasePolicy:
    """The policy before training."""

    source: str  # the folder or the Hugging Face id of the weights
    model: Any
    tokenizer: Any
    chat: ChatTokens


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a method. A part that the method does not use is None."""

    env: Any  # the environment, or a mixture of environments
    states: StateRule  # chooses the states at which rollouts start
    reward: Reward | None
    judge: Any
    advantage: Advantage | None
    loss: Loss
    format: Format  # of tool calls in replies and demonstrations
    dialect: Dialect | None  # how the chat template renders the dialogues of ``data.file``
    allocator: Allocator | None
    gate: Gate | None
    predictor: OnlinePredictor | None
    callbacks: tuple[Callback, ...]
    judged: JudgeVerdictReward | None = None  # the reward with the judge's score added (:meth:`asking`)

    def asking(self, steps: Mapping[str, TurnInContext], chat: ChatTokens) -> Parts:
        """Returns the parts with ``judged`` set, if the run has a judge and a reward. ``steps`` maps state ids to turns."""
        if self.judge is None or self.reward is None:
            return self
        return replace(self, judged=JudgeVerdictReward(self.reward, self.judge, steps, chat.written, self.format))


def build_parts(
    cfg: DictConfig, policy: BasePolicy | None = None, env: Any = None
) -> tuple[Settings, Parts, BasePolicy]:
    """Builds the parts of the method, and loads the policy (unless it is given) and the predictor. Checks that need no
    weights come first. ``env`` is the environment if it is ready.

    Raises:
        InputError: the configuration of a part is not valid, or a model cannot be used.
    """
    settings = Settings.of(cfg)
    built: dict[str, Any] = {name: build(cfg, name) for name in ("states", "reward", "judge", "loss")}
    callbacks = tuple(build(cfg, f"callbacks.{name}") for name, node in (cfg.callbacks or {}).items() if node)
    if env is None:
        check_ready(env := build(cfg, "env"))
    data, chosen = settings.data, OmegaConf.select(cfg, "reward.format")
    form = call_format(chosen, env, from_file=bool(data.file))

    policy = policy or base_policy(settings)
    settings = settings.fitting(policy.model)
    dialect = None
    if data.file is not None and built["states"].source == "expert":
        dialect = dialect_of(policy.chat, data.tools_as_text is True, chosen or data.format)
        form = dialect.format
    reward = built["reward"]
    if getattr(reward, "format", form) is None:  # a reward that parses calls and has no format yet
        reward = built["reward"] = replace(reward, format=form)
    predictor = _predictor(settings, policy.tokenizer)
    known: dict[str, Any] = {"answer": AnswerProbability(policy.model, policy.chat, env)}
    known |= {"value": predictor.values, "reward": predictor.success(reward)} if predictor and reward else {}
    built |= {name: build(cfg, name, **known) for name in ("allocator", "gate", "advantage")}
    parts = Parts(**built, env=env, format=form, dialect=dialect, predictor=predictor, callbacks=callbacks)
    return settings, parts, policy


def base_policy(settings: Settings) -> BasePolicy:
    """Loads the policy, and checks that packed trees give the log-probs of the model's own forward pass (InputError)."""
    policy, longest = settings.policy, settings.rollout.max_length
    source = at_hand(weights_of(policy.model), "policy.model")
    adapter = (policy.lora.r, policy.lora.alpha, policy.lora.dropout)
    model, tokenizer = load_policy(source, policy.dtype, *adapter, settings.seed, policy.start, longest)
    check_exact(model, f"policy.model={policy.model}")
    return BasePolicy(source, model, tokenizer, ChatTokens(tokenizer))


def _predictor(settings: Settings, tokenizer: Any) -> OnlinePredictor | None:
    if (chosen := settings.predictor) is None:
        return None
    source = at_hand(weights_of(chosen.model), "predictor.model")
    predictor = load_predictor(chosen, source, tokenizer, settings.seed, settings.device)
    check_exact(predictor.critic.backbone, f"predictor.model={chosen.model}", probe_backbone)
    return predictor


def prove_judge(
    judged: JudgeVerdictReward | None,
    candidates: Sequence[State],
    distributed: DistributedContext,
    log: Callable[[str], None],
) -> None:
    """Asks the judge about the first candidate, in the first process. If the judge gives no score, every process raises an
    InputError, before the run has cost anything.
    """
    answer = fault = None
    if judged is not None and distributed.first and candidates:
        try:
            answer = judged.prove(candidates[0])
        except InputError as error:
            fault = str(error)
    if fault := distributed.broadcast(fault):
        raise InputError(fault)
    if answer:
        log(answer)


def trainer_of(cfg: DictConfig, settings: Settings, callbacks: list[Callback], loggers: Sequence[Logger]) -> Trainer:
    """Returns Lightning's ``Trainer``. One epoch is one iteration, and validation runs every ``eval.every`` epochs."""
    every = settings.eval.every
    trainer: Trainer = instantiate(
        cfg.trainer,
        callbacks=callbacks,
        logger=[*loggers] or False,
        plugins=[AtomicCheckpointIO(), *environments()],
        use_distributed_sampler=False,  # the collection decides what each process trains on
        default_root_dir=str(settings.folder),
        check_val_every_n_epoch=every or None,
        limit_val_batches=1 if every else 0,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return trainer


def build_player(
    cfg: DictConfig, settings: Settings, parts: Parts, policy: BasePolicy, log: Callable[[str], None]
) -> Player:
    """Returns the player, which samples rollouts with the engine and the environment. The engine has no weights yet."""
    chat, rollout = policy.chat, settings.rollout
    folder = settings.folder / "engine"
    engine = build(cfg, "engine", end_ids=chat.stop_ids, model=policy.source, folder=folder, say=log)
    return Player(
        engine,
        parts.env,
        chat,
        rollout.sampling,
        max_turns=rollout.turns,
        max_length=rollout.max_length,
        retries=rollout.retries,
        environment_seconds=rollout.environment_seconds,
        environment_threads=rollout.environment_threads,
        dialogues=settings.data.judging(parts.format),
    )


# -- the format of tool calls ------------------------------------------------------------------------------------------

FALLBACK: Format = "hermes"  # the format of most chat templates with tools


def call_format(chosen: Format | None, environment: Any, from_file: bool) -> Format:
    """Returns the format of the run's tool calls: ``reward.format``, the format in which the environment's experts write
    (its attribute ``format`` or ``calls``), or ``hermes``. For a file, :func:`build_parts` later replaces ``hermes`` by
    the format that the policy's chat template writes. An InputError says if the parts of a mixture differ.
    """
    if chosen is not None:
        return chosen
    named = {
        name: getattr(env, "format", None) or getattr(env, "calls", None)
        for name, env in ({} if from_file else environments_of(environment)).items()
    }
    formats = {name: form for name, form in named.items() if isinstance(form, str) and form in PARSERS}
    if len(set(formats.values())) > 1:
        listed = ", ".join(f"{name} {form}" for name, form in sorted(formats.items()))
        raise InputError(
            f"reward.format: the environments write calls in different formats ({listed}), but a reward reads only one; "
            "keep environments of one format, or choose reward=functional"
        )
    return next(iter(formats.values()), FALLBACK)  # type: ignore[arg-type]
