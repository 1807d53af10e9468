"""Computes the plan of one run from its configuration: tokens, memory, FLOPs, GPU-hours, and missing inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turnwise.config.settings import LoraSettings
from turnwise.errors import InputError
from turnwise.planning.architectures import Architecture, architecture
from turnwise.planning.gpus import Gpu
from turnwise.planning.hours import Work, work
from turnwise.planning.lengths import AT_MOST, Lengths, lengths
from turnwise.planning.memory import Memory, gpus_of, memory
from turnwise.planning.missing_inputs import at_step, missing, steps_in
from turnwise.planning.parameter_counts import Shape, shape_of, shape_of_critic
from turnwise.planning.tokens import Around, Tokens, around, collections, iteration, trajectories


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The resources that one run needs. If the policy's architecture is unknown, ``shape``, ``memory`` and ``work`` are
    None.
    """

    model: str
    steps: int
    played: float  # number of iterations for which rollouts are sampled; see `tokens.collections`
    gpus: int
    lengths: Lengths
    tokens: Tokens
    around: Around
    shape: Shape | None
    memory: Memory | None
    work: Work | None
    missing: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Returns the plan as a dictionary for JSON. Memory is in GB (10^9 bytes)."""
        shape, taken = self.shape, self.work
        everything = {
            "sampled": self.played * self.tokens.sampled,
            "trained": self.steps * self.tokens.trained,
            "profile": self.around.profiled,
            "evaluation": self.around.evaluated,
        }
        return {
            "model": self.model,
            "parameters": shape and shape.parameters,
            "active_parameters": shape and shape.active,
            "trained_parameters": shape and shape.trained,
            "gpus": self.gpus,
            "steps": self.steps,
            "lengths": {key: value for key, value in asdict(self.lengths).items() if key != "source"},
            "source": dict(self.lengths.source),
            "at_most": sorted(key for key, told in self.lengths.source.items() if told.startswith(AT_MOST)),
            "tokens": {"step": asdict(self.tokens), "all": everything},
            "memory_gb": self.memory and {name: size / 1e9 for name, size in self.memory.parts().items()},
            "flops": taken and dict(taken.flops),
            "gpu_hours": taken and dict(taken.gpu_hours),
            "missing": list(self.missing),
            "to_do": steps_in(self.missing),
        }


def plan(cfg: DictConfig, gpu: Gpu, given: Mapping[str, float | None] | None = None) -> RunPlan:
    """Returns the plan of a run. No model weights are loaded, and nothing is downloaded.

    Args:
        cfg: the run's checked configuration (``turnwise.config.schema.compose_config``).
        given: lengths that the user provides (fields of :class:`turnwise.planning.lengths.Lengths`).
    """
    unknown: list[str] = []
    models: dict[str, Architecture] = {}
    for key in ("policy.model", "predictor.model"):
        name = OmegaConf.select(cfg, key)
        if name is None:
            continue
        try:
            models[key] = architecture(str(name))
        except InputError as error:
            unknown.append(at_step(str(error).replace("policy.model", key, 1), "models"))
    policy = models.get("policy.model")
    known, why = lengths(cfg, policy, given or {})
    tokens, beside = iteration(cfg, known), around(cfg, known, trajectories(cfg))
    shape, held, taken = None, None, None
    if policy is not None:
        shape = shape_of(
            policy, str(cfg.policy.dtype), LoraSettings(int(cfg.policy.lora.r), float(cfg.policy.lora.alpha))
        )
        critic = shape_of_critic(cfg, models["predictor.model"]) if "predictor.model" in models else None
        held = memory(cfg, policy, shape, tokens, beside, critic)
        taken = work(cfg, shape, tokens, beside, gpu, critic, known.reply)
    reasons = (*unknown, *missing(cfg, models, known, shape, held, gpu, why))
    steps = int(cfg.trainer.max_epochs)
    return RunPlan(
        str(cfg.policy.model), steps, collections(cfg), gpus_of(cfg), known, tokens, beside, shape, held, taken, reasons
    )
