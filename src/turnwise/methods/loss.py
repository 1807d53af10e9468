"""The inputs and outputs of every loss, its denominators, and the clipped surrogate loss of PPO and GRPO with options
for the variants of later methods. The losses of all micro-batches of an update add up to the update's loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from annotated_types import Ge, Gt, Interval

from turnwise.errors import InputError

if TYPE_CHECKING:  # torch is slow to import, and a configuration is checked without it
    from torch import Tensor

Aggregation = Literal[
    "seq_mean_token_mean", "tree_mean_seq_mean_token_mean", "turn_mean_token_mean", "token_mean", "constant"
]


def segment_sum(values_K: Tensor, segment_K: Tensor) -> Tensor:
    """Returns, for each token, the sum (K,) of the values of all tokens with the same integer in ``segment_K``, such as
    the tokens of its turn. The sums are differentiable in the values.
    """
    ids, inverse_K = segment_K.unique(return_inverse=True)
    return values_K.new_zeros(len(ids)).index_add(0, inverse_K, values_K)[inverse_K]


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
        mask_K = weight_K > 0
        return cls(
            float(mask_K.sum()),
            float(sequence_K[mask_K].unique().numel()),
            float(turn_K[mask_K].unique().numel()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The K trained tokens of one micro-batch, which the policy (or the expert) wrote. Every tensor has shape (K,).

    Turn and sequence ids are unique within the whole update, and no turn or sequence is split over two micro-batches.
    In a tree that branches only at its root, a sequence is the path to one leaf. A turn that several leaves share is
    stored once, in the sequence of the first leaf below it, unless its credit names another sample (``Credit.sample``);
    its advantage already includes the contributions of all its branches. ``length_K`` counts it in each of them.
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
        tensors = {name: value[keep_K] for name, value in self._tensors().items()}
        return LossInputs(counts=self.counts, **tensors)

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
    """The number of tokens of the batch in each token's segment, shape (K,)."""
    return segment_sum(batch.weight_K.new_ones(len(batch.weight_K)), segment_K)


Level = Literal["token", "sequence", "action", "none"]  # of a ratio; none: no ratio, and for a correction as token

# exp(20) is far outside any clip range. Larger log ratios are cut, because a product over a long action would overflow
# and 0 * inf is NaN.
LOG_RATIO_LIMIT = 20.0


def bounded_exp(log_ratio_K: Tensor) -> Tensor:
    return log_ratio_K.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the tokens of a micro-batch, without gradient. Each tensor has shape (K,)."""

    weight_K: Tensor  # at most the cap; 1 if there is no cap
    kept_K: Tensor  # bool; False for the tokens of a masked sequence
    capped_K: Tensor  # bool; True if the ratio was above the cap


@dataclass(frozen=True, slots=True)
class Correction:
    """Computes the weights of truncated importance sampling, and masks samples that are too far off-policy.

    A sampling engine computes slightly different log-probs than the trainer for the same weights, and a stale sampling
    policy has other weights. With a correction, :class:`Clipped` clips the ratio of pi to the near policy (the trainer's
    policy before its first step on the samples), and the ratio of the near policy to the sampling policy is a constant
    weight of the loss (decoupled PPO, arXiv:2110.00641).

    The weight of a token y is min(pi_near(y) / pi_sampler(y), ``cap``). The ratio is that of each token, or its product
    over the turn (``action``) or over the sample (``sequence``). The truncation is that of Ionides (2008). verl, SkyRL
    and TRL use it at the token level with a cap of 2.

    The mask keeps a sample only if the geometric mean of its token ratios lies in [``mask_low``, ``mask_high``]. The
    defaults are SkyRL's 0.99 and 1.01; verl suggests 0.999 and 1.001 for long outputs. A masked sample has no gradient
    but still counts in the denominators of the loss (as in DeepSeek-V3.2, arXiv:2512.02556, section 3.1). With
    ``cap=None`` every weight is 1. With ``mask_low=None`` or ``mask_high=None`` that limit of the mask does not apply.
    """

    cap: Annotated[float, Ge(1)] | None = 2.0
    level: Level = "token"
    mask_low: Annotated[float, Interval(ge=0, le=1)] | None = 0.99
    mask_high: Annotated[float, Ge(1)] | None = 1.01

    def __call__(self, batch: LossInputs, old_K: Tensor, near_K: Tensor) -> Weights:
        """Returns the weights of a micro-batch of trained tokens. ``old_K`` holds the log-probs that the sampler
        recorded, ``near_K`` those of the near policy.
        """
        log_K = near_K.detach() - old_K
        ratio_K = bounded_exp(self._at_level(log_K, batch))
        cap = float("inf") if self.cap is None else self.cap
        weight_K = ratio_K.new_ones(len(ratio_K)) if self.cap is None else ratio_K.clamp(max=cap)
        tokens_K = segment_sum(log_K.new_ones(len(log_K)), batch.sequence_K)
        geometric_K = bounded_exp(segment_sum(log_K, batch.sequence_K) / tokens_K)
        kept_K = ratio_K.new_ones(len(ratio_K)).bool()
        if self.mask_low is not None:
            kept_K &= geometric_K >= self.mask_low
        if self.mask_high is not None:
            kept_K &= geometric_K <= self.mask_high
        return Weights(weight_K, kept_K, ratio_K > cap)

    def _at_level(self, log_K: Tensor, batch: LossInputs) -> Tensor:
        if self.level == "action":
            return segment_sum(log_K, batch.turn_K)
        return segment_sum(log_K, batch.sequence_K) if self.level == "sequence" else log_K


def surrogate(ratio_K: Tensor, advantage_K: Tensor, low_K: Any, high_K: Any) -> Tensor:
    """PPO's clipped loss of each token, shape (K,): -min(w A, clip(w, 1 - low, 1 + high) A).

    The bounds are tensors (K,) or numbers.
    """
    return -(ratio_K * advantage_K).minimum(clipped_ratio(ratio_K, low_K, high_K) * advantage_K)


def clipped_ratio(ratio_K: Tensor, low_K: Any, high_K: Any) -> Tensor:
    return ratio_K.clamp(1 - low_K, 1 + high_K)


KlEstimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, slots=True)
class Clipped:
    """Loss = -min(w A, clip(w, 1 - e_low, 1 + e_high) A) + beta KL(pi || pi_0) - c H, aggregated over tokens.

    w is the importance ratio and A the advantage. e_low and e_high are ``clip_low`` and ``clip_high``, beta is
    ``kl_beta``, pi_0 the reference policy, c ``entropy_coef`` and H the entropy of the policy pi. pi_old is the policy
    that sampled the rollouts.

    ``ratio`` chooses the importance ratio w:
        - ``token``: pi(y_t | ...) / pi_old(y_t | ...) (GRPO);
        - ``sequence``: the geometric mean of the token ratios over the sequence (GSPO, arXiv:2507.18071);
        - ``action``: pi(a|s) / pi_old(a|s), the product over the turn's tokens (PivotRL, arXiv:2603.21383, Eq. 8; AWPO,
          arXiv:2512.19126, Eq. 25, whose response is one turn). The KL is then computed per action too, as the sum of
          the estimates of the action's tokens. With ``aggregation=turn_mean_token_mean`` the loss is exactly PivotRL's
          Eq. 7 and AWPO's Eq. 25. The longer a turn, the farther its ratio is from 1 after a step;
        - ``none``: w = 1 with the gradient of log pi(y_t | ...), so that nothing is clipped: REINFORCE. With
          ``aggregation=constant`` and ``constant_length=1`` the gradient is that of the mean over samples of
          -A log p(tau) (Selective Rollout, arXiv:2605.05802, Sec. 2.1 and App. C.2).

    ``aggregation``: see :func:`turnwise.methods.loss.token_scale`; ``constant`` needs ``constant_length``.

    ``kl_estimator``, with x = log pi_0 - log pi of the sampled token: k1 = -x, k2 = x^2 / 2, k3 = e^x - x - 1. If an
    estimator is differentiated directly on samples of pi, only k2 has the gradient of KL(pi || pi_0). The gradient of
    k1 is zero in expectation, and that of k3 is the gradient of KL(pi_0 || pi).

    ``kl_importance`` (the default) multiplies the estimate by w with the gradient of w (for ``sequence``, by the ratio
    of the single token). Then k1 and k3 have the gradient of KL(pi || pi_0), also on samples of pi_old. Set
    ``kl_importance`` to False with k2: the expectation of k2 is not the KL, so the factor adds bias.

    ``correction``: see :class:`Correction`; its ``level`` should equal ``ratio``. Without ``near_logprobs_K`` the current
    log-probs are those of the near policy, which they are if there is only one optimizer step.

    The metrics, over tokens, are in docs/metrics.md.
    """

    clip_low: Annotated[float, Interval(ge=0, le=1)] = 0.2
    clip_high: Annotated[float, Interval(ge=0, le=1000)] = 0.2
    ratio: Level = "token"
    aggregation: Aggregation = "seq_mean_token_mean"
    constant_length: Annotated[float, Gt(0)] | None = None
    kl_beta: Annotated[float, Interval(ge=0, le=1000)] = 0.0
    kl_estimator: KlEstimator = "k3"
    kl_importance: bool = True
    entropy_coef: Annotated[float, Interval(ge=-1000, le=1000)] = 0.0
    correction: Correction | None = None

    def __post_init__(self) -> None:
        if (self.constant_length is not None) != (self.aggregation == "constant"):
            raise ValueError("constant_length and aggregation=constant require each other: set both or neither")

    @property
    def needs_reference(self) -> bool:
        return self.kl_beta > 0

    @property
    def needs_near(self) -> bool:
        """Whether updates of several optimizer steps need the log-probs of the policy before the first of them."""
        return self.correction is not None

    @property
    def needs_entropy(self) -> bool:
        return self.entropy_coef != 0

    def __call__(self, batch: LossInputs) -> LossOutput:
        """One micro-batch's part of the loss of the update."""
        batch = batch.trained()
        old_K = _given(batch.old_logprobs_K, "old_logprobs_K", "the log-probs that the sampler recorded")
        advantage_K = _given(batch.advantage_K, "advantage_K", "the advantages of the run's advantage rule")
        near_K = old_K  # log-probs of the policy around which the ratio is clipped
        if self.correction is not None:
            near_K = batch.logprobs_K.detach() if batch.near_logprobs_K is None else batch.near_logprobs_K
        weights = self.correction(batch, old_K, near_K) if self.correction else None
        token_ratio_K = bounded_exp(batch.logprobs_K - near_K)
        ratio_K = self._ratio(batch, near_K)
        low_K = _override(batch.clip_low_K, self.clip_low, ratio_K)
        high_K = _override(batch.clip_high_K, self.clip_high, ratio_K)

        loss_K = surrogate(ratio_K, advantage_K, low_K, high_K)
        cut_low_K, cut_high_K = (ratio_K < 1 - low_K) & (advantage_K < 0), (ratio_K > 1 + high_K) & (advantage_K > 0)
        if weights is not None:
            loss_K, ratio_K, token_ratio_K = (x * weights.weight_K for x in (loss_K, ratio_K, token_ratio_K))
        if self.needs_reference:
            reference_K = _given(
                batch.ref_logprobs_K, "ref_logprobs_K", "the log-probs of the reference policy, or set kl_beta=0"
            )
            loss_K = loss_K + self.kl_beta * self._kl(batch, reference_K, ratio_K, token_ratio_K)
        if self.needs_entropy:
            loss_K = loss_K - self.entropy_coef * _given(
                batch.entropy_K, "entropy_K", "the entropies of the policy, or set entropy_coef=0"
            )
        if weights is not None:
            loss_K = loss_K * weights.kept_K

        loss = (loss_K * token_scale(batch, self.aggregation, self.constant_length)).sum()
        if weights is not None:
            ratio_K = self._ratio(batch, old_K)
        return LossOutput(loss, _metrics(batch, old_K, ratio_K, cut_low_K, cut_high_K, weights))

    def _ratio(self, batch: LossInputs, old_K: Tensor) -> Tensor:
        log_ratio_K = batch.logprobs_K - (batch.logprobs_K.detach() if self.ratio == "none" else old_K)
        if self.ratio == "action":
            log_ratio_K = segment_sum(log_ratio_K, batch.turn_K)
        elif self.ratio == "sequence":
            tokens_K = segment_sum(log_ratio_K.new_ones(len(log_ratio_K)), batch.sequence_K)
            log_ratio_K = segment_sum(log_ratio_K, batch.sequence_K) / tokens_K
        return bounded_exp(log_ratio_K)

    def _kl(self, batch: LossInputs, reference_K: Tensor, ratio_K: Tensor, token_ratio_K: Tensor) -> Tensor:
        kl_K = _KL[self.kl_estimator](reference_K - batch.logprobs_K)
        if self.ratio == "action":
            kl_K = segment_sum(kl_K, batch.turn_K)
        if self.kl_importance:
            # a length-normalised ratio is not an importance weight, so with sequences each token's own ratio is used
            kl_K = kl_K * (ratio_K if self.ratio == "action" else token_ratio_K)
        return kl_K


def _k3(x: Tensor) -> Tensor:
    # expm1 keeps the digits that exp(x) - 1 loses near x = 0
    return x.clamp(max=LOG_RATIO_LIMIT).expm1() - x


_KL = {"k1": lambda x: -x, "k2": lambda x: x.square() / 2, "k3": _k3}


def _given(value_K: Tensor | None, name: str, what: str) -> Tensor:
    if value_K is None:
        raise ValueError(f"the clipped loss needs {name}: pass {what}")
    return value_K


def _override(given_K: Tensor | None, default: float, like_K: Tensor) -> Tensor:
    default_K = like_K.new_full(like_K.shape, default)
    return default_K if given_K is None else default_K.where(given_K.isnan(), given_K.to(like_K.dtype))


def _metrics(
    batch: LossInputs, old_K: Tensor, ratio_K: Tensor, cut_low_K: Tensor, cut_high_K: Tensor, weights: Weights | None
) -> Metrics:
    import torch  # see above

    with torch.no_grad():
        tokens = ratio_K.numel()
        mismatch_K = (batch.logprobs_K - old_K).abs()
        sums = {
            "clip_fraction": (cut_low_K | cut_high_K).sum(),
            "clip_fraction_low": cut_low_K.sum(),
            "clip_fraction_high": cut_high_K.sum(),
            "ratio_mean": ratio_K.sum(),
            "kl_sampler": _k3(batch.logprobs_K - old_K).sum(),
            "mismatch_mean": mismatch_K.sum(),
        }
        if weights is not None:
            sums["correction_weight"] = weights.weight_K.sum()
            sums["correction_capped"] = weights.capped_K.sum()
            sums["correction_masked"] = (~weights.kept_K).sum()
        if batch.ref_logprobs_K is not None:
            sums["kl_ref"] = _k3(batch.ref_logprobs_K - batch.logprobs_K).sum()
        if batch.entropy_K is not None:
            sums["entropy"] = batch.entropy_K.sum()
        totals = torch.stack([value.double() for value in sums.values()]).tolist()  # one transfer from the device
        metrics: dict[str, Mean | Max] = {name: Mean(total, tokens) for name, total in zip(sums, totals, strict=True)}
        if tokens:
            metrics["ratio_max"] = Max(float(ratio_K.max()))
            metrics["mismatch_max"] = Max(float(mismatch_K.max()))
    return metrics


def clipped(logprobs: Sequence[Tensor], update: Any, **options: Any) -> Tensor:
    """The loss of a whole update (``turnwise.rollouts.pack.Update``), for a notebook. ``logprobs`` are those (K,) of the
    items of each micro-batch under the current policy, ``options`` fields of :class:`Clipped`, such as
    ``ratio="action"``; the KL and the entropy are not available here.
    """
    if not update.batches:
        raise InputError(
            "the update has no turn to train on: the rewards of every group are equal, or a gate stopped it"
        )
    loss = Clipped(**options)
    parts = zip(update.batches, logprobs, strict=True)
    return sum(
        (loss(inputs(each.items, own_K, update.counts)).loss for each, own_K in parts), start=logprobs[0].new_zeros(())
    )


def inputs(items: Any, logprobs_K: Tensor, counts: Counts, **known: Tensor | None) -> LossInputs:
    """Returns what a loss reads of a micro-batch: its ``rollouts.pack.Items``, and log-probs and entropies by name."""
    return LossInputs(
        logprobs_K=logprobs_K,
        old_logprobs_K=items.old_logprob_K,
        near_logprobs_K=items.near_logprob_K,
        advantage_K=items.advantage_K,
        weight_K=items.weight_K,
        turn_K=items.turn_K,
        sequence_K=items.sequence_K,
        share_K=items.share_K,
        length_K=items.length_K,
        clip_low_K=items.clip_low_K,
        clip_high_K=items.clip_high_K,
        counts=counts,
        **known,
    )
