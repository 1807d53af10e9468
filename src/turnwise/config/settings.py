"""Defines the settings of a run's policy, data, rollouts, update, evaluation and predictor.

The ranges are annotations. :mod:`turnwise.config.check` compares a composed configuration with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from turnwise.data.match_calls import MOST
from turnwise.data.toolcalls import Format, Thinking
from turnwise.engines.engine import Sampling
from turnwise.rollouts.verdicts import Anchored, Kind

MOST_TASKS = 10**6  # largest number of tasks of an evaluation; all tasks are drawn before the first one is run
WIDEST = 4096  # largest rank of an adapter; a larger one exceeds the width of most layers

# A number far above these limits would never end or would exhaust the memory, and is a slip of the keyboard.
Count = Annotated[int, Interval(ge=0, le=10**7)]
AtLeastOne = Annotated[int, Interval(ge=1, le=10**7)]
Share = Annotated[float, Interval(ge=0, le=1)]
Rate = Annotated[float, Interval(gt=0, le=10)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """A low-rank adapter (arXiv:2106.09685) of rank ``r`` on every linear layer except the output head. With ``r=0``
    all weights are trained without an adapter.
    """

    r: Annotated[int, Interval(ge=0, le=WIDEST)] = 16
    alpha: NotNegative = 32
    dropout: float = 0.0  # dropout would make the trained policy differ from the one that sampled


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The policy's weights, adapter and precision.

    Attributes:
        model: the name of a shipped base (``base=``), a folder in Hugging Face format or a Hugging Face id.
        start: the ``adapter`` folder of a finished run on ``model``, or None. This adapter is first merged into the
            weights. The merged weights are the base policy and the reference policy of the KL term.
    """

    model: str
    lora: LoraSettings
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    start: str | None = None


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
        verifier, similarity, word_overlap: see :class:`turnwise.rollouts.verdicts.Anchored`.
        prompt_tokens: most tokens of the prompt of a state to train on; further states are left out and counted.
        pass_rates: whether the pass rates in a pivot file are used, instead of sampling actions at its states.
        thinking: whether the history of a demonstrated reply contains the thinking of earlier turns (``keep``, as in
            rollouts) or not (``drop``). With None, the chat template decides.
        tools_as_text: whether tools and calls are written as plain text: always (True), only if the chat template
            cannot show them (None), or never (False; a chat template that cannot show them is refused).
        format: text format of the tool calls in the file and in the policy's replies, if the reward sets none. With
            None, the chat template decides.
    """

    file: str | None = None
    trajectories: AtLeastOne = 300
    good: Share = 0.5
    strict: bool = False
    held_out: Annotated[float, Interval(ge=0, le=0.5)] = 0.1
    verifier: Kind | None = None
    similarity: Annotated[float, Interval(gt=0, le=1)] = 0.8
    word_overlap: Annotated[float, Interval(ge=0, le=MOST)] = 0.1
    pass_rates: bool = True
    prompt_tokens: AtLeastOne | None = None
    thinking: Thinking | None = None
    tools_as_text: bool | None = None
    format: Format | None = None

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

    states: AtLeastOne
    sampling: Sampling
    turns: AtLeastOne | None = None
    trajectories: AtLeastOne | None = None
    max_refills: Count = 4
    max_length: AtLeastOne = 4096
    retries: Count = 2
    environment_seconds: Positive | None = 120.0
    environment_threads: Annotated[int, Interval(ge=0, le=1024)] = 8
    recorded: Count = 4
    staleness: Annotated[int, Interval(ge=0, le=8)] = 0
    frozen: AtLeastOne | None = None


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
        memory_gb: memory in GB for the activations of the micro-batches that a CPU computes side by side. For a large
            model, ``row_tokens`` and ``batch_tokens`` are lowered to what fits (a single path may need more). None: no
            limit.
        recompute: whether the backward pass computes the layers again (activation checkpointing). This costs about a
            third more computation and needs a fraction of the memory.
        offload: whether the layer inputs kept by ``recompute`` are in CPU memory, two copies per layer and micro-batch.
    """

    learning_rate: Rate
    steps: AtLeastOne = 1
    warmup: Count = 0
    decay: Share = 0.0
    clip_norm: Positive = 1.0
    weight_decay: NotNegative = 0.0
    max_skips: AtLeastOne = 5
    allow_empty: bool = False
    row_tokens: AtLeastOne = 2048
    batch_tokens: AtLeastOne = 8192
    memory_gb: Positive | None = None
    recompute: bool = False
    offload: bool = False


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Settings of the evaluations before, during and after training.

    Attributes:
        tasks: number of held-out tasks of the environment, or of held-out dialogues if the dialogues belong to no
            environment.
        attempts: number of sampled attempts at each task.
        attempts_of: subset of the benchmark -> number of sampled attempts at each of its tasks, in place of ``attempts``.
        items: number of items of each out-of-domain suite.
        every: number of iterations between two evaluations during training. With 0 there are none during training.
        seed: seed of the choice of tasks and items. Seeds other than 0 give none of the tasks and items of seed 0
            (``evaluation.suites``).
        environment: whether tasks of the environment are evaluated. With None, they are evaluated unless the run reads
            a ``data.file`` in which no dialogue belongs to the environment.
        general: number of general questions, up to 24, on which the divergence from the base model is measured
            (:mod:`turnwise.evaluation.general`). With 0 it is not.
        skills: whether the toy skills are out-of-domain suites. They suit the shipped policies only.
        suites: further out-of-domain suites, name -> environment. Each has ``items`` held-out tasks and greedy
            decoding.
    """

    tasks: Annotated[int, Interval(ge=1, le=MOST_TASKS)]
    attempts: Count = 2
    attempts_of: Mapping[str, Count] | None = None
    items: Count = 200
    every: Count = 0
    seed: Count = 0
    environment: bool | None = None
    general: Annotated[int, Interval(ge=0, le=24)] = 0
    skills: bool = True
    suites: Mapping[str, Any] | None = None


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
    layers: AtLeastOne | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    autocast: bool = False
    learning_rate: Rate = 3e-5
    weight_decay: NotNegative = 0.0
    clip_norm: Positive = 1.0
    epochs: Count = 2
    prefix_share: Annotated[float, Interval(ge=0, lt=1)] = 0.06
    reward_max: Positive = 1.0
    batch: AtLeastOne = 32
    batch_tokens: AtLeastOne = 4096


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """The arguments of Lightning's Trainer that a configuration may set, for the check without Lightning. The run sets
    the others itself.
    """

    accelerator: Literal["cpu", "gpu", "cuda", "auto"] = "auto"
    strategy: Literal["auto", "ddp", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false"] = "auto"
    devices: AtLeastOne | Literal["auto", -1] | Sequence[Count] = "auto"
    num_nodes: Annotated[int, Interval(ge=1, le=10**4)] = 1
    # Float16 scales the loss, so update.clip_norm would be the limit of scaled gradients. Lightning's bf16-true fails
    # on the data of an update; policy.dtype=bfloat16 sets the type of the weights.
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    max_epochs: Count = 1
    log_every_n_steps: Count = 1
    reload_dataloaders_every_n_epochs: Literal[1] = 1  # each iteration collects new rollouts
    num_sanity_val_steps: Literal[0] = 0  # the run itself evaluates the base policy
    deterministic: bool | Literal["warn"] | None = None
    benchmark: bool | None = None
    detect_anomaly: bool = False
    profiler: Literal["simple", "advanced", "pytorch"] | None = None
    sync_batchnorm: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """What ``callbacks.checkpoint`` may set: with other values, a resumed run would not find its last checkpoint."""

    dirpath: str
    filename: Literal["last"] = "last"
    save_top_k: Literal[1] = 1
    save_on_train_epoch_end: Literal[True] = True
    enable_version_counter: Literal[False] = False
    every_n_epochs: Annotated[int, Ge(1)] = 1
