"""Defines the settings of a run's policy, data, rollouts, update, evaluation and predictor, which the files of ``conf/``
explain, each beside its value. The ranges are annotations, which :mod:`turnwise.config.check` compares with a
configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval

from turnwise.data.match_calls import MOST
from turnwise.data.toolcalls import Format
from turnwise.engines.engine import Sampling
from turnwise.rollouts.verdicts import AnchoredVerdict, Kind

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
    """``model`` is the name of a shipped base (``base=``), a folder in Hugging Face format or a Hugging Face id;
    ``start`` is the ``adapter`` folder of a finished run on ``model``. This adapter is first merged into the weights,
    which are then the base policy and the reference policy of the KL term.
    """

    model: str
    lora: LoraSettings
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    start: str | None = None


@dataclass(frozen=True, slots=True)
class DataSettings:
    """The expert trajectories, which a file or the environment's own experts provide. ``held_out`` and the attributes
    after it only apply to dialogues of ``file`` that belong to no environment.
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
    tools_as_text: bool | None = None
    format: Format | None = None

    def judging(self, form: Format) -> AnchoredVerdict:
        """The verifier of replies in dialogues without an environment. ``form`` is the format of tool calls."""
        return AnchoredVerdict(form, self.verifier, self.similarity, self.word_overlap)


@dataclass(frozen=True, slots=True)
class RolloutSettings:
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
    """AdamW's updates. Each of ``steps`` uses an equal part of the batch's trees, in the order in which they were
    drawn; from the second on, policy ratios differ from 1 and may be clipped.
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
    """The evaluations before, during and after training. Seeds other than 0 give none of the tasks and items of seed 0
    (``evaluation.suites``). With ``environment=None``, tasks of the environment are evaluated unless the run reads
    a ``data.file`` in which no dialogue belongs to it.
    """

    tasks: Annotated[int, Interval(ge=1, le=MOST_TASKS)]
    attempts: Count = 2
    attempts_of: Mapping[str, Count] | None = None
    items: Count = 200
    every: Count = 0
    seed: Count = 0
    environment: bool | None = None
    general: Annotated[int, Interval(ge=1, le=24)] | None = None
    skills: bool | None = None
    suites: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """A critic that learns online to predict the success of a history, trained by AdamW at a constant learning rate. A
    scalar head replaces the output head of ``model``. Rewards are divided by ``reward_max`` before predictions are
    compared with them.
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
    max_epochs: int = 1  # the key iterations, which has the range
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
