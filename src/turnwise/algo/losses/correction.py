"""Corrects for samples that were drawn from another policy, by truncated importance weights and by masking sequences.

A sampling engine computes slightly different log-probs than the trainer for the same weights. A stale sampling policy
has other weights than the trainer. In both cases a sample y is off-policy with the ratio pi(y) / pi_sampler(y) of its
probabilities under the trained and under the sampling policy. Without a correction,
:class:`turnwise.algo.losses.clipped.Clipped` clips this ratio. With a correction, the loss clips the ratio of pi to the
near policy: the trainer's own policy before its first optimizer step on the samples. The ratio of the near policy to
the sampling policy is then a constant weight of the loss (decoupled PPO, arXiv:2110.00641).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turnwise.algo.losses.loss import LossInputs
from turnwise.models.segment_sum import segment_sum

if TYPE_CHECKING:  # torch is slow to import, and a configuration is checked without it
    from torch import Tensor

Level = Literal["token", "action", "sequence"]

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

    The weight of a token is min(pi_near(y) / pi_sampler(y), ``cap``). The near policy pi_near is the trainer's policy
    before its first step on the samples. The ratio is that of each token, or its product over the turn (``action``) or
    over the sample (``sequence``). The truncation is that of Ionides, "Truncated importance sampling" (2008). verl,
    SkyRL and TRL use it at the token level with a cap of 2, to correct the mismatch between the log-probs of sampling
    engine and trainer.

    The mask keeps a sample only if the geometric mean of its token ratios lies in [``mask_low``, ``mask_high``]. The
    defaults are SkyRL's 0.99 and 1.01; verl suggests 0.999 and 1.001 for long outputs. A masked sample has no gradient
    but still counts in the denominators of the loss (as in DeepSeek-V3.2, arXiv:2512.02556, section 3.1). With
    ``cap=None`` every weight is 1. With ``mask_low=None`` or ``mask_high=None`` that limit of the mask does not apply.
    """

    cap: float | None = 2.0
    level: Level = "token"
    mask_low: float | None = 0.99
    mask_high: float | None = 1.01

    def __post_init__(self) -> None:
        if self.cap is not None and not self.cap >= 1:
            raise ValueError(
                f"cap must be null or at least 1 (the importance ratio of two equal policies), got {self.cap}"
            )
        if self.level not in ("token", "action", "sequence"):
            raise ValueError(f"level must be token, action or sequence, got {self.level!r}")
        if self.mask_low is not None and not 0 <= self.mask_low <= 1:
            raise ValueError(f"mask_low must be in [0, 1] or null, got {self.mask_low}")
        if self.mask_high is not None and not self.mask_high >= 1:
            raise ValueError(f"mask_high must be at least 1 or null, got {self.mask_high}")

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
