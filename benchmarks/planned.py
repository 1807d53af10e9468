"""Computes the planner's estimates (``scripts/plan.py``) of a benchmark's memory, to compare them with measurements."""

from __future__ import annotations

from shapes import config_of
from turnwise.config.settings import LoraSettings
from turnwise.planning.activations import activation_bytes
from turnwise.planning.architectures import Architecture
from turnwise.planning.memory import CHUNK, DRAWN_LOGIT, TRAINED_LOGIT
from turnwise.planning.parameter_counts import Shape, shape_of
from turnwise.rollouts.pack import Update


def planned_shape(shape: str, dtype: str, lora: LoraSettings | None = None) -> tuple[Architecture, Shape]:
    """Returns a benchmark's model in the form that the planner uses."""
    source = Architecture(shape, config_of(shape), None)
    return source, shape_of(source, dtype, lora)


def planned_step(
    shape: str, dtype: str, lora: LoraSettings, update: Update, recompute: bool = False, offload: bool = False
) -> int:
    """Returns the bytes of an optimiser step beyond weights and moments: gradients, activations and logits.

    All micro-batches count as large as the largest micro-batch, as in ``planning.memory``.
    """
    source, counts = planned_shape(shape, dtype, lora)
    largest = max(update.batches, key=lambda batch: batch.ids_BS.numel())
    rows, tokens = largest.ids_BS.shape
    scored = len(largest.target_U)
    autocast = dtype == "bfloat16"
    kept = activation_bytes(source, dtype, lora, rows, tokens, scored, autocast, recompute, offload)
    return counts.trained_bytes + kept + min(CHUNK, scored) * TRAINED_LOGIT * counts.vocabulary


def planned_sampling(
    shape: str, dtype: str, histories: int, history: float, samples: int, reply: int, memory_gb: float
) -> int:
    """Returns the bytes of the engine: its copy of the weights, stored and new keys and values, and logits.

    Args:
        histories, history: number of stored histories, and tokens of each.
        samples, reply: number of actions that are sampled together, and tokens of each.
        memory_gb: memory limit of the stored keys and values.
    """
    counts = planned_shape(shape, dtype)[1]
    kept = min(memory_gb * 1e9, histories * history * counts.kv_bytes)
    drawn = samples * reply * counts.kv_bytes + samples * DRAWN_LOGIT * counts.vocabulary
    return round(counts.weight_bytes + kept + drawn)
