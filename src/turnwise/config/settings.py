"""Groups of numbers that belong to no part: how a policy is loaded, how much is collected, what is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from turnwise.data.toolcalls.formats import Format
from turnwise.engines.engine import Sampling
from turnwise.rollouts.anchored import Anchored, Kind

MOST_TASKS = 10**6  # of an evaluation: each is drawn before any is played
WIDEST = 4096  # rank of an adapter: beyond the width of most layers, and then no low-rank adapter any more


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
    """A low-rank adapter (arXiv:2106.09685) of rank ``r`` on every linear layer but the output head; 0 trains all weights."""

    r: int = 16
    alpha: float = 32
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.r <= WIDEST:
            raise ValueError(f"r must be a rank from 0 (all weights are trained) to {WIDEST}, got {self.r}")
        _at_least(0, alpha=self.alpha)
        if self.dropout:
            raise ValueError(
                "dropout must be 0: the policy that learns would not be the one that sampled, and a run that was killed would "
                f"draw other masks; got {self.dropout}"
            )


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """``model`` is the name of a shipped base (``conf/base``), a folder in Hugging Face format or a Hugging Face id.

    ``start`` is the ``adapter`` folder of a finished run on it, merged into the weights before anything else: that run's policy
    is then the base, and the reference of the KL term.
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
    """Expert trajectories: of ``file`` (chat-message JSON lines or Parquet), or played by the world's own experts.

    ``good`` is the share that the good expert plays; the clumsy one plays the rest. ``strict`` stops at the first bad
    trajectory, otherwise bad ones are counted, listed and left out.

    The others are for dialogues of ``file`` that no environment plays. A share ``held_out`` of them is never trained on, and
    the run is judged on it. ``verifier`` and ``similarity`` are kind and threshold of
    :class:`turnwise.rollouts.anchored.Anchored`.
    ``tools_as_text`` writes tools and calls as text: always (true), never (false: a chat template that cannot show them is
    refused), or where the chat template cannot show them (null). ``format`` is how calls are written in the file's dialogues
    and by the policy, where the reward does not say it (None: as the chat template writes them).
    """

    file: str | None = None
    trajectories: int = 300
    good: float = 0.5
    strict: bool = False
    held_out: float = 0.1
    verifier: Kind | None = None
    similarity: float = 0.8
    tools_as_text: bool | None = None
    format: Format | None = None

    def __post_init__(self) -> None:
        _at_least(1, trajectories=self.trajectories)
        if not 0 <= self.good <= 1:
            raise ValueError(f"good must be a share in [0, 1], got {self.good}")
        if not 0 <= self.held_out <= 0.5:
            raise ValueError(f"held_out must be a share in [0, 0.5], got {self.held_out}")
        if not 0 < self.similarity <= 1:
            raise ValueError(f"similarity must lie in (0, 1], got {self.similarity}")

    def judging(self, form: Format) -> Anchored:
        """Who judges replies of dialogues that no environment plays, where calls are written in ``form``."""
        return Anchored(form, self.verifier, self.similarity)


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How one iteration's rollouts are collected.

    Attributes:
        states: root states an iteration.
        sampling: temperature, length and filters of the policy's actions.
        turns: of a rollout; None: until the episode ends.
        trajectories: about how many demonstrated trajectories the roots come from; None: all states of each trajectory are used.
        max_refills: how often further states are drawn where the advantage asks for a full batch.
        max_length: tokens of a history, after which a rollout ends.
        retries: how often a rollout whose environment failed is started again.
        environment_seconds: how long one answer of the environment may take before it counts as failed; None: no limit.
            Workers, sandboxes and servers have shorter limits of their own.
        environment_threads: steps under way at once in environments that wait for commands or servers; 0: one after the other.
        recorded: trees of each iteration that are written to ``rollouts/train.jsonl``.
        spool: how a collection goes on after a kill (``engines.spooled``). ``exact``: the run ends bit for bit as an
            undisturbed one. ``quick``: less is computed again. None: nothing is kept.
        staleness: how many updates the sampling policy may be behind the trained one. 0, or 1 to collect the next iteration
            while this one is trained on.
        frozen: states from which the base policy samples before the first update; every iteration then draws its ``states``
            from these groups. None: each iteration samples its own.
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
    spool: Literal["exact", "quick"] | None = "exact"
    staleness: Literal[0, 1] = 0
    frozen: int | None = None

    def __post_init__(self) -> None:
        if self.environment_seconds is not None and not self.environment_seconds > 0:
            raise ValueError(
                f"environment_seconds must be above 0, or null for no limit, got {self.environment_seconds}"
            )
        if self.environment_threads < 0:
            raise ValueError(f"environment_threads must be at least 0, got {self.environment_threads}")
        _at_least(0, max_refills=self.max_refills, retries=self.retries, recorded=self.recorded)
        if self.staleness not in (0, 1):
            raise ValueError(f"staleness must be 0 or 1, got {self.staleness}")
        _at_least(self.sampling.max_tokens + 1, max_length=self.max_length)
        _at_least(1, states=self.states, turns=self.turns, trajectories=self.trajectories)
        if self.trajectories is not None and self.trajectories > self.states:
            raise ValueError(
                f"trajectories ({self.trajectories}) must be at most states ({self.states}), which are spread over them; "
                "lower it, or set it to null"
            )
        _at_least(self.states, frozen=self.frozen)


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """One update: ``steps`` AdamW steps, each over an equal part of the collection's trees in the order in which they were drawn,
    ``batch_tokens`` packed tokens a pass in rows of ``row_tokens`` (:func:`turnwise.rollouts.pack.row_limit`). From the second
    step on the policy is no longer the one that played: ratios leave 1, and the clip can bind.

    The rate rises over ``warmup`` steps, stays, and falls linearly to 0 over the last share ``decay`` of the run's steps;
    gradients are clipped to the norm ``clip_norm``. ``recompute`` keeps a layer's input alone until the backward pass, which
    computes the layer again: a third more work for a fraction of the memory; with ``offload`` those inputs wait in the memory
    of the CPU, two copies a layer and micro-batch. An update whose gradient is not finite changes
    nothing and is counted; ``max_skips`` of them in a row end the run. So do three updates in a row without a sample that counts,
    unless ``allow_empty``.
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
            raise ValueError(
                "offload needs recompute: it moves the inputs of layers that are computed again; set recompute=true"
            )
        _at_least(
            1, steps=self.steps, max_skips=self.max_skips, row_tokens=self.row_tokens, batch_tokens=self.batch_tokens
        )


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """Held-out tasks and out-of-domain items, before and after training and every ``every`` iterations (0: never between).

    A run on dialogues that no environment plays is measured on as many of its held-out dialogues instead; with ``environment``
    tasks of the environment are played beside them (None: only where the run's trajectories are the environment's).
    """

    tasks: int
    attempts: int = 2
    items: int = 200
    every: int = 0
    environment: bool | None = None

    def __post_init__(self) -> None:
        _at_least(1, tasks=self.tasks)
        if self.tasks > MOST_TASKS:
            raise ValueError(f"tasks must be at most {MOST_TASKS}, got {self.tasks}")
        _at_least(0, attempts=self.attempts, items=self.items, every=self.every)


@dataclass(frozen=True, slots=True)
class PredictorSettings:
    """A critic that learns the success of histories online: which weights it starts from and how it is trained.

    ``model`` is the name of a shipped base (its weights), a folder or a Hugging Face id; a scalar head replaces
    its own, over the lowest ``layers`` of it (None: all).
    After every collection it takes ``epochs`` passes over all roots and a random few later histories, ``prefix_share`` of
    the whole, in batches of ``batch`` histories, with AdamW at a constant rate and gradients clipped to ``clip_norm``.
    ``reward_max`` is what full success pays: predictions and rewards are compared as shares of it. ``batch_tokens`` bounds
    a forward pass. ``autocast`` computes in bfloat16 over weights of ``dtype``.
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
