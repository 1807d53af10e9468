"""Supervised fine-tuning: negative log-likelihood of demonstrated tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from turnwise.algo.losses.loss import LossInputs, LossOutput, Mean, token_scale


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

    def __post_init__(self) -> None:
        if self.aggregation not in ("token_mean", "turn_mean_token_mean"):
            raise ValueError(f"aggregation must be token_mean or turn_mean_token_mean, got {self.aggregation!r}")

    def __call__(self, batch: LossInputs) -> LossOutput:
        batch = batch.trained()
        loss = -(batch.logprobs_K * token_scale(batch, self.aggregation)).sum()
        tokens = float(batch.logprobs_K.numel())
        metrics = {"nll": Mean(-float(batch.logprobs_K.detach().sum()), tokens)}
        if batch.entropy_K is not None:
            metrics["entropy"] = Mean(float(batch.entropy_K.detach().sum()), tokens)
        return LossOutput(loss, metrics)
