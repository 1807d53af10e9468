"""Callbacks that watch training: log-probs of engine and trainer that differ, the cosine of two rewards' gradients, and
iterations from which the policy learns nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Len
from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from turnwise.errors import Stopped
from turnwise.methods.gate import Never
from turnwise.methods.states import STD_TOLERANCE
from turnwise.rollouts.pack import Update, pack
from turnwise.training.group_metrics import gate_result
from turnwise.training.policy_module import PolicyModule
from turnwise.training.recorder import Recorder
from turnwise.types import Credit, RolloutTree

logger = logging.getLogger(__name__)


class MismatchAlarm(Callback):
    """Checks ``train/mismatch_mean``: the mean of |log pi - log pi_sampler| over the tokens of an iteration's first
    optimiser step, in nats. If the rollouts are on-policy, this mean measures numerical differences, which are small
    (docs/engines.md); a much larger mean shows a mistake, such as other weights or another temperature. With rollouts of
    an earlier policy, ``train/mismatch_sampler_mean`` is checked instead (:func:`stale_mismatch`).

    Logs ``train/mismatch_alarms``, the number of iterations so far above the threshold. Of consecutive ones, only the
    first causes a warning. The default threshold is NeMo-RL's limit of 2 % for the mean of e^x - 1.
    """

    def __init__(self, threshold: Annotated[float, Gt(0)] = 0.02) -> None:
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
    """Returns the mean and the largest absolute difference, in nats, between the log-probs of the engine and of the trainer
    with the weights of the stored policy ``sampler`` that sampled the trees. One micro-batch of trees is compared, which
    begins with another tree in each iteration. All processes must call this function with the same trees.
    """
    chosen: list[RolloutTree] = []
    credits: list[Credit] = []
    settings, tokens = module.settings, 0
    first = module.version % max(1, len(trees))
    for tree in [*trees[first:], *trees[:first]]:
        if tree.stopped or not tree.turns:
            continue
        tokens += len(tree.state.ids) + sum(len(turn.action_ids) + len(turn.observation_ids) for turn in tree.turns)
        if chosen and tokens > settings.batch_tokens:
            break
        chosen.append(tree)
        credits.append(Credit([0.0] * len(tree.turns), [1.0] * len(tree.turns)))
    update = pack(chosen, credits, settings.row_tokens, settings.batch_tokens)
    if not update.batches:
        return {}
    with module.become(sampler):
        difference_K = module.differences(replace(update, batches=update.batches[:1]))
    return {"mismatch_sampler_mean": float(difference_K.mean()), "mismatch_sampler_max": float(difference_K.max())}


class GradientCosine(Callback):
    """Logs ``train/gradient_cosine``: cos(g_out, g_mix) of AWPO's appendix (arXiv:2512.19126, Eqs. 55-58), the gradients
    for the outcome reward and for the mixed reward, every ``every`` iterations.

    It is computed exactly, over the whole update and all trained parameters, before the first optimiser step of an
    iteration, with one forward and two backward passes. Both are gradients of the run's loss without its KL and entropy
    terms, in which a *view* of the update (:class:`turnwise.types.Credit`) replaces the advantages. Nothing is logged
    if an update lacks a view, or if a gradient is zero.
    """

    def __init__(
        self, every: Annotated[int, Ge(1)] = 10, views: Annotated[Sequence[str], Len(2, 2)] = ("outcome", "mixed")
    ) -> None:
        self.every, (self.first, self.second) = every, views
        self._cosine: float | None = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if batch_idx:
            return
        self._cosine = None
        if trainer.current_epoch % self.every == 0:
            assert isinstance(pl_module, PolicyModule)
            with trainer.precision_plugin.train_step_context(), torch.random.fork_rng():
                self._cosine = gradient_cosine(pl_module, batch, self.first, self.second)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._cosine is not None:
            pl_module.last_metrics["gradient_cosine"] = self._cosine  # type: ignore[operator, index]


def gradient_cosine(module: PolicyModule, update: Update, first: str, second: str) -> float | None:
    """Returns the cosine between the gradients of the loss for the views ``first`` and ``second`` of an update, or None
    if the update lacks a view or a gradient is zero.
    """
    mine = all({first, second} <= packed.items.views.keys() for packed in update.batches)
    if not all(module.distributed.gather([mine])):  # all processes must decide alike, because they sum below
        return None
    g, h = (module.distributed.summed(gradient) for gradient in view_gradients(module, update, (first, second)))
    norms = _dot(g, g), _dot(h, h)
    return _dot(g, h) / math.sqrt(norms[0] * norms[1]) if all(norms) else None


def view_gradients(module: PolicyModule, update: Update, views: tuple[str, ...]) -> list[list[Tensor]]:
    """Returns for each view the gradients of the loss without KL and entropy terms, one for each trained parameter."""
    parameters = [p for p in module.model.parameters() if p.requires_grad]
    totals = [[torch.zeros_like(p) for p in parameters] for _ in views]
    for packed, reference in zip(update.batches, module.references(update), strict=True):
        inputs = module.loss_inputs(packed, update, reference)
        # the loss with advantages 0 has only the KL and entropy terms, which are equal in all views
        rest = module.loss(replace(inputs, advantage_K=torch.zeros_like(inputs.logprobs_K))).loss
        for view, total in zip(views, totals, strict=True):
            advantage_K = packed.items.views[view].to(inputs.logprobs_K.device)
            loss = module.loss(replace(inputs, advantage_K=advantage_K)).loss - rest
            for sum_, gradient in zip(
                total, torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True), strict=True
            ):
                if gradient is not None:
                    sum_ += gradient
    return totals


def _dot(g: list[Tensor], h: list[Tensor]) -> float:
    return math.fsum(float((a.double() * b.double()).sum()) for a, b in zip(g, h, strict=True))


# -- iterations that teach nothing -------------------------------------------------------------------------------------


IN_A_ROW = 3  # so many iterations in a row without a sample end the run; so many with another problem cause a warning
# kind of problem -> (metric, whether a value of this metric shows the problem, text of the warning)
_PROBLEMS: Mapping[str, tuple[str, Callable[[float], bool], str]] = {
    "empty": ("train/samples", lambda x: x == 0, "no rollout can be trained on, so the weights do not change"),
    "spread": ("train/reward_std", lambda x: x <= STD_TOLERANCE, "all rollouts of each group earned the same reward"),
    "format": (
        "train/readable",
        lambda x: x == 0,
        "no action could be read as tool calls in reward.format, or all were cut off (rollout.sampling.max_tokens)",
    ),
    "truncated": ("train/truncated", lambda x: x == 1, "every action was cut off; raise rollout.sampling.max_tokens"),
    "unpaid": ("train/turns_paid", lambda x: x == 0, "no turn before a last one had a reward (advantage.turn_reward)"),
    "masked": ("train/correction_masked", lambda x: x > 0.5, "loss=corrected left out more than half of the tokens"),
}
_CAUSED = ("empty", "spread")  # kinds whose warning also tells the likely cause


class Health(Callback):
    """Warns about iterations from which the policy learns nothing, once about each kind of problem, with the likely cause.
    After several iterations in a row without a training sample, the run ends, unless ``allow_empty`` is set. The trainer
    must call the recorder before this callback.
    """

    def __init__(self, recorder: Recorder, log: Callable[[str], None], allow_empty: bool = False) -> None:
        self.recorder, self.log_line, self.allow_empty = recorder, log, allow_empty  # Lightning sets the name `log`
        self.in_a_row = dict.fromkeys(_PROBLEMS, 0)
        self.warnings: dict[str, str] = {}  # kind of problem -> the warning about it

    def state_dict(self) -> dict[str, Any]:
        return {"in_a_row": dict(self.in_a_row), "warnings": dict(self.warnings)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.in_a_row |= state_dict["in_a_row"]
        self.warnings = dict(state_dict["warnings"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.check(trainer.current_epoch, self.recorder.last)
        unpaid = "train/reward_mean" not in self.recorder.last and self.recorder.last.get("rollout/faults")
        if unpaid and self.in_a_row["empty"] == trainer.max_epochs and not self.allow_empty:
            raise Stopped("the environment failed in every rollout; the first messages above say how")

    def check(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for kind, (metric, shows, text) in _PROBLEMS.items():
            seen = metric in metrics and shows(metrics[metric])
            self.in_a_row[kind] = self.in_a_row[kind] + 1 if seen else 0
            if kind in self.warnings or self.in_a_row[kind] < (1 if kind == "empty" else IN_A_ROW):
                continue
            when = f"iteration {iteration}" if kind == "empty" else f"the {IN_A_ROW} iterations up to {iteration}"
            text = f"{when}: {text}{f'; {likely_cause(metrics)}' if kind in _CAUSED else ''}"
            self.warnings[kind] = text
            self.log_line(f"warning: {text}")
        if self.in_a_row["empty"] >= IN_A_ROW and not self.allow_empty:
            raise Stopped(
                f"{self.in_a_row['empty']} iterations in a row had no rollout to train on; {likely_cause(metrics)}. Give the run "
                "another name=... with other settings; the same command with update.allow_empty=true continues to the end"
            )

    def closing(self, gate: Any) -> dict[str, Any]:
        stopped = {} if gate is None or isinstance(gate, Never) else {"gate": gate_result(self.recorder.counters)}
        return stopped | ({"warnings": list(self.warnings.values())} if self.warnings else {})


def likely_cause(metrics: Mapping[str, float]) -> str:
    """Returns the likely reason why the groups of an iteration give no learning signal, and a remedy."""
    groups, mean = metrics.get("train/groups", 0.0), metrics.get("train/reward_mean")
    played = groups + metrics.get("train/groups_refilled", 0.0)
    if played and metrics.get("train/groups_solved") == played:
        return "every rollout earned the full reward: choose harder tasks (env= or data.file=), or keep this policy"
    if not groups:
        return "every group was replaced or left out; choose states that the policy solves sometimes (states=pivots)"
    if metrics.get("train/groups_cut") == groups:
        return "the gate stopped all groups; let it stop fewer (gate.threshold), or set gate=never"
    if metrics.get("train/truncated") == 1:
        return "every action was cut off; raise rollout.sampling.max_tokens"
    if metrics.get("train/readable") == 0:
        return "no action has calls in reward.format; correct it, or start from a policy that writes it (policy.start)"
    if mean is None:
        return "no rollout has a reward: the environment failed, or the method computes no rewards"
    if mean <= 0:
        return (
            "no rollout earned a reward: start from a policy that method=sft trained (policy.start) until some of its tasks "
            "succeed (more iterations=, policy.lora.r=0), or choose states=pivots or easier tasks"
        )
    return "raise rollout.sampling.temperature or allocator.group_size, or choose states=pivots"
