"""What the sampler drew, seen as draws of another policy: importance weights, cut off, and sequences left out.

An engine computes the log-probs of the same weights a little otherwise than the trainer, and a stale policy has other weights.
Either way the samples are off-policy by the ratio pi(y) / pi_sampler(y), which :class:`turnwise.algo.losses.clipped.Clipped`
otherwise puts inside its clip. Corrected, the clip is around the trainer's own policy before its first step on the samples, and
the ratio of that policy to the sampler's is a weight (decoupled PPO, arXiv:2110.00641).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from turnwise.algo.losses.loss import LossInputs
from turnwise.models.tensors import segment_sum

Level = Literal["token", "action", "sequence"]

_LOG_LIMIT = 20.0  # of a log ratio; beyond it a product over a long action would overflow


@dataclass(frozen=True, slots=True)
class Weights:
    """Constants of the tokens of a micro-batch, (K,) each."""

    weight_K: Tensor  # at most the cap; 1 where there is none
    kept_K: Tensor  # bool; False in a sequence that is left out
    capped_K: Tensor  # bool; the cap has cut the ratio


@dataclass(frozen=True, slots=True)
class Correction:
    """Truncated importance sampling and sequence masking.

    Weight: min(pi(y) / pi_sampler(y), ``cap``), with the ratio of each token, or its product over the turn (``action``) or
    over the sample (``sequence``). Truncation is that of Ionides, "Truncated importance sampling" (2008); at the token level with
    a cap of 2 it is what trainers of language models use against the mismatch of engines (verl, SkyRL, TRL).

    Mask: a sample counts only if the geometric mean of its token ratios lies in [``mask_low``, ``mask_high``]. The defaults are
    SkyRL's 0.99 and 1.01; verl suggests 0.999 and 1.001 for long outputs. A masked sample stays in the denominators of the
    loss: it is one that taught nothing (as in DeepSeek-V3.2, arXiv:2512.02556, section 3.1).

    A null switches either off.
    """

    cap: float | None = 2.0
    level: Level = "token"
    mask_low: float | None = 0.99
    mask_high: float | None = 1.01

    def __post_init__(self) -> None:
        if self.cap is not None and not self.cap >= 1:
            raise ValueError(f"cap must be at least 1, where policies agree, or null; got {self.cap}")
        if self.level not in ("token", "action", "sequence"):
            raise ValueError(f"level must be token, action or sequence, got {self.level!r}")
        if self.mask_low is not None and not 0 <= self.mask_low <= 1:
            raise ValueError(f"mask_low must be in [0, 1] or null, got {self.mask_low}")
        if self.mask_high is not None and not self.mask_high >= 1:
            raise ValueError(f"mask_high must be at least 1 or null, got {self.mask_high}")

    @torch.no_grad()
    def __call__(self, batch: LossInputs, old_K: Tensor, near_K: Tensor) -> Weights:
        """The weights of a micro-batch.

        Args:
            batch: trained tokens only.
            old_K: log-probs that the sampler recorded.
            near_K: log-probs of the policy that the clip is around.
        """
        log_K = near_K.detach() - old_K
        ratio_K = self._at_level(log_K, batch).clamp(-_LOG_LIMIT, _LOG_LIMIT).exp()
        cap = float("inf") if self.cap is None else self.cap
        weight_K = torch.ones_like(ratio_K) if self.cap is None else ratio_K.clamp(max=cap)
        mean_K = segment_sum(log_K, batch.sequence_K) / segment_sum(torch.ones_like(log_K), batch.sequence_K)
        geometric_K = mean_K.clamp(-_LOG_LIMIT, _LOG_LIMIT).exp()
        kept_K = torch.ones_like(ratio_K, dtype=torch.bool)
        if self.mask_low is not None:
            kept_K &= geometric_K >= self.mask_low
        if self.mask_high is not None:
            kept_K &= geometric_K <= self.mask_high
        return Weights(weight_K, kept_K, ratio_K > cap)

    def _at_level(self, log_K: Tensor, batch: LossInputs) -> Tensor:
        if self.level == "action":
            return segment_sum(log_K, batch.turn_K)
        return segment_sum(log_K, batch.sequence_K) if self.level == "sequence" else log_K
