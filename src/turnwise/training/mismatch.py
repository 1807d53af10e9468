"""Compares the engine's log-probs of sampled tokens with the trainer's log-probs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lightning import Callback, LightningModule, Trainer

from turnwise.rollouts.pack import pack
from turnwise.training.module import PolicyModule
from turnwise.types import Credit, RolloutTree

logger = logging.getLogger(__name__)


class MismatchAlarm(Callback):
    """Checks ``train/mismatch_mean``: the mean of |log pi - log pi_sampler| over the tokens of an iteration's first
    optimiser step, in nats.

    If the rollouts are on-policy, this mean measures numerical differences, which are small (docs/engines.md). A much
    larger mean shows a mistake, such as other weights, another temperature, or log-probs of another distribution. The
    callback logs ``train/mismatch_alarms``, the number of iterations so far whose mean exceeded the threshold. Of
    consecutive iterations above the threshold, only the first causes a warning. Rollouts of an earlier policy
    (``rollout.staleness``) are expected to differ from the trained policy. In iterations with these rollouts, the
    callback logs and checks ``train/mismatch_sampler_mean`` instead (:func:`stale_mismatch`).

    Args:
        threshold: greatest mean without an alarm. The default corresponds to NeMo-RL's limit of 2 % for the mean of
            e^x - 1, where x is the absolute difference of a token's log-probs.
    """

    def __init__(self, threshold: float = 0.02) -> None:
        if not threshold > 0:
            raise ValueError(f"threshold must be above 0, got {threshold}")
        self.threshold = threshold
        self.alarms = 0
        self._warned = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, PolicyModule)
        metrics = pl_module.last_metrics
        if batch_idx + 1 < pl_module.settings.steps or "mismatch_mean" not in metrics:
            return
        metrics |= pl_module.stale_mismatch
        name = "mismatch_sampler" if pl_module.staleness else "mismatch"
        mean, largest = metrics.get(f"{name}_mean", 0.0), metrics.get(f"{name}_max", 0.0)
        wrong = not mean <= self.threshold  # NaN counts as wrong too
        self.alarms += wrong
        metrics["mismatch_alarms"] = float(self.alarms)
        if wrong and not self._warned and trainer.is_global_zero:
            logger.warning(
                "iteration %d: the engine's log-probs differ from the trainer's by %.3g nats a token on average, which "
                "is above callbacks.mismatch.threshold=%g (the largest difference is %.3g); check that engine and "
                "trainer have the same weights, dtype and temperature. loss=corrected corrects for small differences",
                trainer.current_epoch,
                mean,
                self.threshold,
                largest,
            )
        self._warned = wrong

    def state_dict(self) -> dict[str, Any]:
        return {"alarms": self.alarms}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.alarms = state_dict["alarms"]


def stale_mismatch(module: PolicyModule, sampler: dict[str, Any], trees: Sequence[RolloutTree]) -> dict[str, float]:
    """Returns the mean and the largest absolute difference between log-probs of the engine and of the trainer with the
    weights of the stored policy ``sampler`` that sampled the trees, in nats, or nothing if there is nothing to compare.

    The trainer computes the log-probs of one micro-batch of trees, which begins with another tree in each iteration.
    Turns that a newer policy sampled (``engine.in_flight``) are left out. All processes must call this function with
    the same trees.
    """
    chosen: list[RolloutTree] = []
    credits: list[Credit] = []
    settings, tokens = module.settings, 0
    first = module.version % max(1, len(trees))
    for tree in [*trees[first:], *trees[:first]]:
        weight = [float(turn.version == sampler["version"]) for turn in tree.turns]
        if tree.stopped or not any(weight):
            continue
        tokens += len(tree.state.ids) + sum(len(turn.action_ids) + len(turn.observation_ids) for turn in tree.turns)
        if chosen and tokens > settings.batch_tokens:
            break
        chosen.append(tree)
        credits.append(Credit([0.0] * len(weight), weight))
    update = pack(chosen, credits, settings.row_tokens, settings.batch_tokens)
    if not update.batches:
        return {}
    with module.become(sampler):
        difference_K = module.differences(replace(update, batches=update.batches[:1]))
    return {"mismatch_sampler_mean": float(difference_K.mean()), "mismatch_sampler_max": float(difference_K.max())}
