"""The inputs and outputs of every loss, its denominators, and the loss of supervised fine-tuning. The losses of all
micro-batches of an update add up to the update's loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, get_args

from turnwise.models.segment_sum import segment_sum

if TYPE_CHECKING:  # torch is slow to import, and a configuration is checked without it
    from torch import Tensor

Aggregation = Literal[
    "seq_mean_token_mean", "tree_mean_seq_mean_token_mean", "turn_mean_token_mean", "token_mean", "constant"
]
AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)


@dataclass(frozen=True, slots=True)
class Counts:
    """The denominators of the loss: numbers of tokens, sequences and turns with a weight above 0 in the WHOLE update
    (all micro-batches, all ranks). A trainer whose ranks average their gradients multiplies the loss by the number of
    ranks.
    """

    tokens: float
    sequences: float
    turns: float

    @classmethod
    def of(cls, weight_K: Tensor, sequence_K: Tensor, turn_K: Tensor) -> Counts:
        """The counts of a whole update, from the weight, sequence and turn of each of its K tokens."""
        kept = weight_K > 0
        return cls(float(kept.sum()), float(sequence_K[kept].unique().numel()), float(turn_K[kept].unique().numel()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The trained tokens of one micro-batch. Every tensor has shape (K,), where K is the number of these tokens. The
    policy (or the expert) wrote these tokens. Tokens of observations are left out.

    Turn and sequence ids are unique within the whole update, and no turn or sequence is split over two micro-batches.
    In a tree that branches only at its root, a sequence is the path to one leaf. In every tree each token is stored
    once. A turn that several leaves share counts in the sequence of the first leaf below the turn, unless its credit
    names another sample (``Credit.sample``). The advantage of a turn already includes the contributions of all its
    branches. ``length_K`` counts shared turns in each of their sequences.
    """

    logprobs_K: Tensor  # log pi, with gradient, at the sampling temperature
    weight_K: Tensor  # weight of the token's turn; 0 takes the turn out of the loss and of every count
    turn_K: Tensor  # integer id of the token's turn
    sequence_K: Tensor  # integer id of the token's sample
    counts: Counts
    share_K: Tensor | None = None  # weight of the token's sample if all trees weigh the same (see token_scale)
    length_K: Tensor | None = None  # number of trained tokens of the token's sample; None: its tokens in this batch
    advantage_K: Tensor | None = None
    old_logprobs_K: Tensor | None = None  # log-probs of the policy that sampled
    near_logprobs_K: Tensor | None = None  # log-probs of the trainer's policy before its first step on these rollouts
    ref_logprobs_K: Tensor | None = None  # log-probs of the reference policy pi_0
    entropy_K: Tensor | None = None  # entropy of the distribution pi that predicts the token, with gradient, in nats
    clip_low_K: Tensor | None = None  # overrides the loss's own clip range; NaN if a token has no override
    clip_high_K: Tensor | None = None

    def __post_init__(self) -> None:
        for name, value in self._tensors().items():
            if value.shape != self.logprobs_K.shape or value.ndim != 1:
                shape, expected = tuple(value.shape), tuple(self.logprobs_K.shape)
                raise ValueError(
                    f"{name} has shape {shape}, but logprobs_K has shape {expected}; both must be (K,) with the same K"
                )

    def trained(self) -> LossInputs:
        """Returns only the tokens whose weight is above 0, so that values of discarded tokens cannot matter."""
        keep_K = self.weight_K > 0
        kept = {name: value[keep_K] for name, value in self._tensors().items()}
        return LossInputs(counts=self.counts, **kept)

    def _tensors(self) -> dict[str, Tensor]:
        from torch import Tensor  # see above

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


@dataclass(frozen=True, slots=True)
class Mean:
    """A metric that is a mean, kept as total and count, so that the values of micro-batches and ranks can be added."""

    total: float
    count: float

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else 0.0

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.count + other.count)


@dataclass(frozen=True, slots=True)
class Max:
    """A metric that is a maximum. The sum of two maxima is the larger one."""

    value: float

    def __add__(self, other: Max) -> Max:
        return Max(max(self.value, other.value))


Metrics = Mapping[str, Mean | Max]


def merge_metrics(parts: Iterable[Metrics]) -> dict[str, Mean | Max]:
    """The metrics of an update from those of its micro-batches, each of which may lack some."""
    merged: dict[str, Mean | Max] = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name] + metric if name in merged else metric  # type: ignore[operator]
    return merged


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The contribution of one micro-batch to the loss of the update, and the micro-batch's metrics. The contributions
    of all micro-batches must be summed, not averaged.
    """

    loss: Tensor
    metrics: Metrics


class Loss(Protocol):
    @property
    def needs_reference(self) -> bool: ...

    @property
    def needs_entropy(self) -> bool: ...

    def __call__(self, batch: LossInputs) -> LossOutput: ...


def token_scale(batch: LossInputs, aggregation: Aggregation, constant_length: float | None = None) -> Tensor:
    """Returns the factor by which each token's loss is multiplied before the sum over tokens, shape (K,). ``batch``
    holds trained tokens only.

    - ``seq_mean_token_mean``: the mean over the tokens of each sequence, then the mean over all sequences of the update
      (GRPO). A sequence that continues a shared turn is divided by its whole length (``length_K``), although the tokens
      of the shared turn are stored in another sequence (TRACE Eq. 49);
    - ``tree_mean_seq_mean_token_mean``: the mean over the tokens of each sequence, then over the sequences of each
      tree, then over trees, so that a prompt with ten samples weighs as much as one with two (TRACE Eqs. 43 and 47).
      This aggregation reads ``share_K``, 1 / (trees x samples of the token's tree);
    - ``turn_mean_token_mean``: the mean over the tokens of each turn, then the mean over all turns of the update
      (PivotRL Eq. 7);
    - ``token_mean``: the mean over all tokens of the update (DAPO);
    - ``constant``: the sum over tokens, divided by (sequences x ``constant_length``). It has no length bias (Dr.GRPO).

    A token's weight scales the token's loss but changes no denominator: a token of weight 1/2 counts as a whole token.

    Raises:
        ValueError: ``aggregation`` is ``tree_mean_seq_mean_token_mean``, and there is no ``share_K``.
    """
    counts = batch.counts
    match aggregation:
        case "seq_mean_token_mean":
            return batch.weight_K / _length(batch) / max(counts.sequences, 1.0)
        case "tree_mean_seq_mean_token_mean":
            if batch.share_K is None:
                raise ValueError("the mean over trees needs share_K: pass the values that rollouts.pack computes")
            return batch.weight_K / _length(batch) * batch.share_K
        case "turn_mean_token_mean":
            return batch.weight_K / _tokens(batch, batch.turn_K) / max(counts.turns, 1.0)
        case "token_mean":
            return batch.weight_K / max(counts.tokens, 1.0)
        case "constant":
            assert constant_length is not None  # the loss's constructor has checked this
            return batch.weight_K / (max(counts.sequences, 1.0) * constant_length)


def _length(batch: LossInputs) -> Tensor:
    """Trained tokens of each token's sequence, shape (K,)."""
    return _tokens(batch, batch.sequence_K) if batch.length_K is None else batch.length_K


def _tokens(batch: LossInputs, segment_K: Tensor) -> Tensor:
    """Tokens of the batch in each token's segment, shape (K,)."""
    return segment_sum(batch.weight_K.new_ones(len(batch.weight_K)), segment_K)


@dataclass(frozen=True, slots=True)
class Nll:
    """Computes -log pi(a*|s) of the demonstrated actions a* in their states s (PivotRL section 2).

    With ``token_mean`` the loss is the mean over all demonstrated tokens of the update, and every token has the same
    weight. With ``turn_mean_token_mean`` it is the mean over the tokens of each turn and then over turns, and every
    turn has the same weight. The metrics are ``nll`` (in nats per token) and, if the entropy was computed, ``entropy``.
    Both are unweighted means over tokens.
    """

    aggregation: Literal["token_mean", "turn_mean_token_mean"] = "token_mean"

    needs_reference: ClassVar[bool] = False
    needs_entropy: ClassVar[bool] = False

    def __call__(self, batch: LossInputs) -> LossOutput:
        batch = batch.trained()
        loss = -(batch.logprobs_K * token_scale(batch, self.aggregation)).sum()
        tokens = float(batch.logprobs_K.numel())
        metrics = {"nll": Mean(-float(batch.logprobs_K.detach().sum()), tokens)}
        if batch.entropy_K is not None:
            metrics["entropy"] = Mean(float(batch.entropy_K.detach().sum()), tokens)
        return LossOutput(loss, metrics)
