"""Computes the FLOPs and GPU-hours of a run on a given GPU at a given utilisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from omegaconf import DictConfig, OmegaConf

from turnwise.planning import flops
from turnwise.planning.gpus import Gpu
from turnwise.planning.memory import at_a_time, evaluated_at_once, gpus_of
from turnwise.planning.parameter_counts import Shape
from turnwise.planning.tokens import Around, Tokens, collections
from turnwise.training.profile import TOGETHER as SHARD


@dataclass(frozen=True, slots=True)
class Work:
    """The FLOPs and GPU-hours of a run, for each of its parts (such as sampling or evaluation) and in total."""

    flops: Mapping[str, float]
    gpu_hours: Mapping[str, float]


def work(
    cfg: DictConfig, shape: Shape, tokens: Tokens, around: Around, gpu: Gpu, critic: Shape | None, reply: float
) -> Work:
    """Returns the FLOPs and GPU-hours of a run.

    Sampling: every decoding step reads the engine's weights once for all replies that are decoded together, and it
    reads the keys and values of each reply. The time of a prefill is limited by computation. Training: an update makes
    a forward and a backward pass over the packed rows, including masked query-key pairs. The backward pass contains a
    second pass through the layers if they are recomputed (``update.recompute``). The update makes a further forward
    pass if the loss needs log-probs of the reference policy. The time for the following is not counted: kernel
    launches, environments, judges, optimiser steps, diagnostics, loading and saving.
    """
    steps = int(cfg.trainer.max_epochs)
    counts: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def sampling(part: str, sampled: float, prefilled: float, context: float, samples: float, rounds: float) -> None:
        """Adds the FLOPs and seconds of a part of the run that samples tokens. ``rounds`` is the number of decoding
        steps. Each step adds one token to every reply in progress.
        """
        prefill = flops.decode(shape, 0.0, context, prefilled)
        counts[part] = flops.decode(shape, sampled, context, 0.0) + prefill
        read = sampled / max(1.0, samples) * context + sampled * reply / 2  # a history is read once for its replies
        moved = rounds * shape.weight_bytes + read * shape.kv_bytes
        seconds[part] = gpu.seconds(counts[part] - prefill, moved) + gpu.seconds(prefill)

    gpus = gpus_of(cfg)  # each GPU samples a part of the rollouts, and reads the weights for this part
    share = ceil(tokens.histories / gpus)
    groups = gpus * ceil(share / max(1, at_a_time(cfg, shape, share, tokens.history)))
    played = collections(cfg)
    rounds = played * groups * tokens.depth * reply
    sampling("sampling", played * tokens.sampled, played * tokens.prefilled, tokens.context, tokens.samples, rounds)
    stored, scored = steps * tokens.stored, steps * tokens.trained
    counts["forward"] = flops.forward(shape, stored, tokens.row, scored)
    recompute = bool(cfg["update"].recompute)
    counts["backward"] = flops.backward(shape, stored, tokens.row, scored, recompute)
    refers = float(cfg.loss.get("kl_beta") or 0) > 0
    counts["reference"] = flops.forward(shape, stored, tokens.row, scored) if refers else 0.0
    counts["predictor"] = _critic(cfg, critic, tokens) if critic else 0.0
    for part in ("forward", "backward", "reference", "predictor"):
        seconds[part] = gpu.seconds(counts[part])
    k = int(OmegaConf.select(cfg, "states.k", default=0) or 1)
    spines = at_a_time(cfg, shape, SHARD, tokens.history)
    # decoding steps of the profile: sampled tokens divided by the number of replies decoded at a time
    rounds = around.profiled / min(SHARD, max(1.0, spines * k * around.demonstrated))
    sampling("profile", around.profiled, around.profiled_prefill, tokens.context, k, rounds)
    together = at_a_time(cfg, shape, evaluated_at_once(cfg), around.history)
    rounds = around.evaluated / together
    sampling("evaluation", around.evaluated, around.evaluated_prefill, around.context, 1, rounds)
    hours = {part: value / 3600 for part, value in seconds.items()}
    return Work({**counts, "total": sum(counts.values())}, {**hours, "total": sum(hours.values())})


def _critic(cfg: DictConfig, critic: Shape, tokens: Tokens) -> float:
    """Returns the FLOPs of the critic (the success predictor) in the whole run. In each iteration, the critic makes a
    forward pass over all tokens of the rollouts, and then trains for ``predictor.epochs`` epochs.
    """
    seen = tokens.prefilled + tokens.sampled
    asked = flops.forward(critic, seen, tokens.context, 0)
    taught = tokens.states * tokens.before / (1 - float(cfg.predictor.prefix_share))
    learning = flops.forward(critic, taught, tokens.before, 0) + flops.backward(critic, taught, tokens.before, 0)
    return int(cfg.trainer.max_epochs) * (asked + int(cfg.predictor.epochs) * learning)
