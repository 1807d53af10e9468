"""Defines the settings of a run's policy, data, rollouts, update, evaluation and predictor, and checks their ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from turnwise.data.match_calls import MOST
from turnwise.data.toolcalls import Format, Thinking
from turnwise.engines.engine import Sampling
from turnwise.rollouts.demonstrated_reply import Anchored, Kind

MOST_TASKS = 10**6  # largest number of tasks of an evaluation; all tasks are drawn before the first one is run
WIDEST = 4096  # largest rank of an adapter; a larger one exceeds the width of most layers


def _at_least(minimum: float, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not minimum <= value < inf:
            raise ValueError(f"{name} must be at least {minimum} and finite, got {value}")


def _above_zero(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < inf:
            raise ValueError(f"{name} must be above 0 and finite, got {value}")


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """A low-rank adapter (arXiv:2106.09685) of rank ``r`` on every linear layer except the output head. With ``r=0``
    all weights are trained without an adapter.
    """

    r: int = 16
    alpha: float = 32
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.r <= WIDEST:
            raise ValueError(f"r must be a rank from 0 (all weights are trained) to {WIDEST}, got {self.r}")
        _at_least(0, alpha=self.alpha)
        if self.dropout:
            raise ValueError(
                "dropout must be 0: with dropout the trained policy would differ from the policy that sampled the "
                f"rollouts, and a resumed run would use other masks; got {self.dropout}"
            )


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The policy's weights, adapter and precision.

    Attributes:
        model: the name of a shipped base (``conf/base``), a folder in Hugging Face format or a Hugging Face id.
        start: the ``adapter`` folder of a finished run on ``model``, or None. This adapter is first merged into the
            weights. The merged weights are the base policy and the reference policy of the KL term.
    """

    model: str
    lora: LoraSettings
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    start: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.lora, LoraSettings):
            raise ValueError(f"lora must be a part with r and alpha (r=0 trains all weights), got {self.lora!r}")


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Settings of the expert trajectories, which a file or the environment's own experts provide. ``held_out`` and the
    attributes after it only apply to dialogues of ``file`` that belong to no environment.

    Attributes:
        file: a file of chat messages, JSON lines or Parquet. With None, the environment's experts generate the
            trajectories.
        trajectories: number of trajectories that the environment's experts generate.
        good: fraction of these trajectories that the good expert generates. The clumsy expert generates the rest.
        strict: whether the run stops at the first unusable trajectory, instead of counting and leaving out unusable
            ones.
        held_out: fraction of the dialogues that is used for evaluation and never trained on.
        verifier, similarity, word_overlap: see :class:`turnwise.rollouts.demonstrated_reply.Anchored`.
        pass_rates: whether the pass rates in a pivot file are used, instead of sampling actions at its states.
        thinking: whether the history of a demonstrated reply contains the thinking of earlier turns (``keep``, as in
            rollouts) or not (``drop``). With None, the chat template decides.
        tools_as_text: whether tools and calls are written as plain text: always (True), only if the chat template
            cannot show them (None), or never (False; a chat template that cannot show them is refused).
        format: text format of the tool calls in the file and in the policy's replies, if the reward sets none. With
            None, the chat template decides.
    """

    file: str | None = None
    trajectories: int = 300
    good: float = 0.5
    strict: bool = False
    held_out: float = 0.1
    verifier: Kind | None = None
    similarity: float = 0.8
    word_overlap: float = 0.1
    pass_rates: bool = True
    thinking: Thinking | None = None
    tools_as_text: bool | None = None
    format: Format | None = None

    def __post_init__(self) -> None:
        _at_least(1, trajectories=self.trajectories)
        if not 0 <= self.good <= 1:
            raise ValueError(f"good must be a share in [0, 1], got {self.good}")
        if not 0 <= self.held_out <= 0.5:
            raise ValueError(f"held_out must be a share in [0, 0.5], got {self.held_out}")
        if not 0 < self.similarity <= 1:
            raise ValueError(f"similarity must be in (0, 1], got {self.similarity}")
        if not 0 <= self.word_overlap <= MOST:
            raise ValueError(
                f"word_overlap must be in [0, {MOST}], the overlap of two equal texts, got {self.word_overlap}"
            )

    def judging(self, form: Format) -> Anchored:
        """Returns the verifier of replies in dialogues without an environment. ``form`` is the format of tool calls."""
        return Anchored(form, self.verifier, self.similarity, self.word_overlap)


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings for sampling the rollouts of an iteration.

    Attributes:
        states: number of root states per iteration.
        turns: largest number of turns of a rollout. None means until the episode ends.
        trajectories: approximate number of trajectories from which root states are drawn. None: trajectories are used
            whole.
        max_refills: how often, at most, new states replace those without a learning signal (``zero_variance=refill``).
        max_length: largest number of tokens of a history. A rollout that reaches it ends.
        retries: how often a rollout whose environment failed is started again.
        environment_seconds: time in seconds after which a missing answer of the environment counts as failed. None: no
            limit. Workers, sandboxes and servers have shorter limits of their own.
        environment_threads: number of concurrent steps and resets in environments that wait for commands or servers. 0: no
            concurrency.
        recorded: number of trees of each iteration that are written to ``rollouts/train.jsonl``.
        staleness: largest number of updates, up to 8, by which the sampling policy is older than the trained one.
            Rollouts of that many iterations are sampled ahead, during the updates.
        frozen: number of states at which the base policy samples groups before the first update. Every iteration then
            trains on ``states`` of these groups. With None, each iteration samples its own rollouts.
    """

    states: int
    sampling: Sampling
    turns: int | None = None
    trajectories: int | None = None
    max_refills: int = 4
    max_length: int = 4096
    retries: int = 2
    environment_seconds: float | None = 120.0
    environment_threads: int = 8
    recorded: int = 4
    staleness: int = 0
    frozen: int | None = None

    def __post_init__(self) -> None:
        if self.environment_seconds is not None and not self.environment_seconds > 0:
            raise ValueError(
                f"environment_seconds must be above 0, or null for no limit, got {self.environment_seconds}"
            )
        if self.environment_threads < 0:
            raise ValueError(f"environment_threads must be at least 0, got {self.environment_threads}")
        _at_least(0, max_refills=self.max_refills, retries=self.retries, recorded=self.recorded)
        if not 0 <= self.staleness <= 8:
            raise ValueError(f"staleness must be from 0 to 8, got {self.staleness}")
        _at_least(self.sampling.max_tokens + 1, max_length=self.max_length)
        _at_least(1, states=self.states, turns=self.turns, trajectories=self.trajectories)
        if self.trajectories is not None and self.trajectories > self.states:
            raise ValueError(
                f"trajectories ({self.trajectories}) must be at most states ({self.states}), so that each trajectory has "
                "a state; lower trajectories, or set it to null"
            )
        _at_least(self.states, frozen=self.frozen)


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """Settings of the policy's updates by AdamW. Three iterations in a row without a sample of non-zero weight end the
    run, unless ``allow_empty`` is set.

    Attributes:
        learning_rate: the highest learning rate of the schedule.
        steps: number of optimiser steps of an update. Each step uses an equal part of the batch's trees, in the order
            in which they were drawn. From the second step on, policy ratios differ from 1 and may be clipped.
        warmup: number of optimiser steps over which the learning rate rises linearly.
        decay: fraction of all optimiser steps, at the end of the run, over which the learning rate falls linearly to 0.
        clip_norm: largest norm of the gradient.
        max_skips: this many updates in a row whose gradient is not finite end the run. Each of them is skipped.
        row_tokens: largest number of tokens in a packed row (exceptions: :func:`turnwise.rollouts.pack.row_limit`).
        batch_tokens: largest number of tokens in a micro-batch, including padding. A single row may be longer.
        recompute: whether the backward pass computes the layers again (activation checkpointing). This costs about a
            third more computation and needs a fraction of the memory.
        offload: whether the layer inputs kept by ``recompute`` are in CPU memory, two copies per layer and micro-batch.
    """

    learning_rate: float
    steps: int = 1
    warmup: int = 0
    decay: float = 0.0
    clip_norm: float = 1.0
    weight_decay: float = 0.0
    max_skips: int = 5
    allow_empty: bool = False
    row_tokens: int = 2048
    batch_tokens: int = 8192
    recompute: bool = False
    offload: bool = False

    def __post_init__(self) -> None:
        _above_zero(learning_rate=self.learning_rate, clip_norm=self.clip_norm)
        _at_least(0, warmup=self.warmup, weight_decay=self.weight_decay)
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must be a share in [0, 1], got {self.decay}")
        if self.offload and not self.recompute:
            raise ValueError("offload moves the layer inputs that recompute stores, so set recompute to true as well")
        _at_least(
            1, steps=self.steps, max_skips=self.max_skips, row_tokens=self.row_tokens, batch_tokens=self.batch_tokens
        )


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Settings of the evaluations before, during and after training.

    Attributes:
        tasks: number of held-out tasks of the environment, or of held-out dialogues if the dialogues belong to no
            environment.
        attempts: number of sampled attempts at each task.
        items: number of items of each out-of-domain suite.
        every: number of iterations between two evaluations during training. With 0 there are none during training.
        seed: seed of the choice of tasks and items. Seeds other than 0 give none of the tasks and items of seed 0
            (``evaluation.fresh_tasks``).
        environment: whether tasks of the environment are evaluated. With None, they are evaluated unless the run reads
            a ``data.file`` in which no dialogue belongs to the environment.
        suites: further out-of-domain suites, name -> environment. Each has ``items`` held-out tasks and greedy
            decoding.
    """

    tasks: int
    attempts: int = 2
    items: int = 200
    every: int = 0
    seed: int = 0
    environment: bool | None = None
    suites: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.tasks <= MOST_TASKS:
            shortest = "eval.tasks=1 eval.attempts=0 eval.items=0 is the shortest evaluation"
            raise ValueError(f"tasks must be 1 to {MOST_TASKS}, got {self.tasks}; {shortest}")
        _at_least(0, attempts=self.attempts, items=self.items, every=self.every, seed=self.seed)


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """A critic that learns online to predict the success of a history, trained by AdamW at a constant learning rate.

    Attributes:
        model: the name of a shipped base, a folder or a Hugging Face id. A scalar head replaces its output head.
        layers: number of the model's lowest layers that are used. None means all layers.
        autocast: whether to compute in bfloat16.
        epochs: number of training passes per iteration over all root states and randomly chosen later histories.
        prefix_share: fraction of the histories in a training pass that are later histories. The rest are root states.
        reward_max: the reward of full success. Rewards are divided by it before predictions are compared with them.
        batch: number of histories in an optimiser step.
        batch_tokens: largest number of tokens in a forward pass.
    """

    model: str
    layers: int | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    autocast: bool = False
    learning_rate: float = 3e-5
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    epochs: int = 2
    prefix_share: float = 0.06
    reward_max: float = 1.0
    batch: int = 32
    batch_tokens: int = 4096

    def __post_init__(self) -> None:
        _above_zero(learning_rate=self.learning_rate, clip_norm=self.clip_norm, reward_max=self.reward_max)
        _at_least(0, epochs=self.epochs, weight_decay=self.weight_decay)
        _at_least(1, layers=self.layers, batch=self.batch, batch_tokens=self.batch_tokens)
        if not 0 <= self.prefix_share < 1:
            raise ValueError(f"prefix_share must be in [0, 1), got {self.prefix_share}")
