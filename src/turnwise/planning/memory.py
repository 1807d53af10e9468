"""Memory of one GPU by part, in bytes. Every GPU holds all of the policy, unless ``trainer=fsdp`` puts it into shards."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil

from omegaconf import DictConfig, OmegaConf

from turnwise.config.settings import LoraSettings
from turnwise.engines.store import GROW
from turnwise.evaluation.suites import CHUNK as EPISODES
from turnwise.planning.activations import activation_bytes
from turnwise.planning.architectures import Architecture
from turnwise.planning.shape import Shape
from turnwise.planning.tokens import Around, Tokens

CHUNK = 1024  # positions whose logits stand at once in the update (tensors.selected_logprobs)
TRAINED_LOGIT = 20  # bytes an entry: product, float32 logits; in the backward pass logs, probabilities and gradient too
DRAWN_LOGIT = 34  # bytes an entry in engines.draw: product, four float32 copies, two float64 ones


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes.

    Attributes:
        weights: of the base model and its adapter; in shards one GPU's part, and what is gathered at a time.
        gradients: as wide as the trained weights; likewise.
        optimiser: AdamW's two moments, each as wide as the trained weights; in shards one GPU's part.
        copy: the engine's own weights with the adapter merged (``engine.copy``).
        predictor: weights, gradients and moments of a critic.
        cache: keys and values that the engine keeps, ``engine.memory_gb`` at most unless a single history needs more.
        drawing: keys and values of replies while they are written, room for ``max_tokens`` each.
        activations: what a training pass keeps of the largest micro-batch.
        logits: of a training chunk or a sampling step, whichever is larger; of both where one runs beside the other.
        earlier: the trained weights of an update ago, which a collection ahead is begun with again.
        overlapped: whether sampling runs beside training (``rollout.staleness``), and not in turns with it.
    """

    weights: int
    gradients: int
    optimiser: int
    copy: int
    predictor: int
    cache: int
    drawing: int
    activations: int
    logits: int
    earlier: int = 0
    overlapped: bool = False

    @property
    def resident(self) -> int:
        """What stands in memory all the time."""
        return self.weights + self.earlier + self.gradients + self.optimiser + self.copy + self.predictor + self.cache

    @property
    def peak(self) -> int:
        """Resident, and what sampling and training add: the larger, or both where they do not take turns."""
        added = (self.drawing, self.activations)
        return self.resident + (sum(added) if self.overlapped else max(added)) + self.logits

    def parts(self) -> dict[str, int]:
        """Every part by name, and the peak."""
        return {**{name: size for name, size in asdict(self).items() if name != "overlapped"}, "peak": self.peak}


def cached(shape: Shape, history: float) -> int:
    """Bytes of one history's keys and values, in the engine's steps of growth."""
    return -(-max(1, round(history)) // GROW) * GROW * shape.kv_bytes


def at_a_time(cfg: DictConfig, shape: Shape, histories: int, history: float) -> int:
    """How many of the histories the engine holds at a time (``engines.rows.Rows``); at least one, if there is any."""
    budget = cfg.engine.get("memory_gb")
    return histories if budget is None else min(histories, max(1, int(budget * 1e9) // cached(shape, history)))


def gpus_of(cfg: DictConfig) -> int:
    """GPUs of one run: ``trainer.devices`` times ``trainer.num_nodes``; what is no number counts as one."""
    devices, nodes = cfg.trainer.get("devices", 1), cfg.trainer.get("num_nodes", 1)
    each = len(devices) if not isinstance(devices, int | str) else int(devices) if str(devices).isdigit() else 1
    return max(1, each) * int(nodes)


def sharding(cfg: DictConfig) -> tuple[int, bool]:
    """Into how many shards the policy is put, and whether they stand in the memory of the CPU."""
    strategy = cfg.trainer.get("strategy")
    if not OmegaConf.is_config(strategy) or not str(strategy.get("_target_")).endswith("FullySharded"):
        return 1, False
    return gpus_of(cfg), bool(strategy.get("offload"))


def micro_batch(cfg: DictConfig, tokens: Tokens) -> tuple[int, int, int]:
    """(rows, tokens of a row, scored tokens) of the largest micro-batch of an update."""
    row = max(1, round(tokens.row))
    rows = max(1, int(cfg["update"].batch_tokens) // row)
    rows = min(rows, max(1, round(tokens.stored / row)))
    return rows, row, max(1, round(rows * row * tokens.trained / tokens.stored)) if tokens.stored else 1


def memory(
    cfg: DictConfig, source: Architecture, shape: Shape, tokens: Tokens, around: Around, predictor: Shape | None
) -> Memory:
    """Memory of a run; no part of training where there is none (``trainer.max_epochs=0``)."""
    trains = int(cfg.trainer.max_epochs) > 0
    inside = "vllm" not in str(cfg.engine.get("_target_"))  # servers have GPUs of their own
    shards, offload = sharding(cfg)
    beside = 0 if offload else 1  # what stays on the GPU
    layers, outside = shape.layers, shape.head * shape.item * (1 if source.config.tie_word_embeddings else 2)
    gathered = outside + 2 * (shape.weight_bytes - outside) // layers if shards > 1 else 0  # a layer, and the next one
    lora = LoraSettings(int(cfg.policy.lora.r), float(cfg.policy.lora.alpha))
    rows, row, scored = micro_batch(cfg, tokens)
    held = at_a_time(cfg, shape, ceil(tokens.histories / gpus_of(cfg)), tokens.history)
    played = at_a_time(cfg, shape, EPISODES, around.history)
    drawn = max(held * tokens.samples, played)
    passes = ("mixed" in str(cfg.trainer.precision), bool(cfg["update"].recompute), bool(cfg["update"].offload))
    kept = activation_bytes(source, str(cfg.policy.dtype), lora, rows, row, scored, *passes) if trains else 0
    ahead = trains and bool(cfg.rollout.staleness)
    entries = (CHUNK * TRAINED_LOGIT if trains else 0, inside * drawn * DRAWN_LOGIT)
    return Memory(
        weights=beside * (shape.weight_bytes + shape.adapter_bytes) // shards + gathered,
        gradients=(beside * shape.trained_bytes // shards + (2 * shape.trained_bytes // layers if gathered else 0))
        if trains
        else 0,
        optimiser=beside * 2 * shape.trained_bytes // shards if trains else 0,
        copy=shape.weight_bytes if cfg.engine.get("copy") else 0,  # as an attribute it is a method
        predictor=predictor.weight_bytes * 4 if predictor else 0,
        cache=inside * max(held * cached(shape, tokens.history), played * cached(shape, around.history)),
        drawing=inside * round(drawn * int(cfg.rollout.sampling.max_tokens) * shape.kv_bytes),
        activations=kept,
        logits=round((sum(entries) if ahead else max(entries)) * shape.vocabulary),
        earlier=shape.trained_bytes if ahead else 0,
        overlapped=ahead,
    )
