"""Estimates how many bytes of memory each part of a run needs on each GPU. Every GPU holds the whole policy, unless
``trainer=fsdp`` shards it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil

from omegaconf import DictConfig, OmegaConf

from turnwise.config.settings import LoraSettings
from turnwise.engines.kv_store import GROW
from turnwise.evaluation.suites import at_once
from turnwise.planning.activations import activation_bytes
from turnwise.planning.architectures import Architecture
from turnwise.planning.parameter_counts import Shape
from turnwise.planning.tokens import Around, Tokens

CHUNK = 1024  # number of positions whose logits the update holds in memory at once (tensors.selected_logprobs)
TRAINED_LOGIT = (
    20  # bytes per logit: matrix product, float32 logits, and in the backward pass log-probs, probabilities, gradient
)
DRAWN_LOGIT = 34  # bytes per logit in engines.draw_tokens: matrix product, four float32 copies and two float64 copies


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one GPU by part, in bytes.

    Attributes:
        weights: the base model and its adapter. If they are sharded: one GPU's shard, and the layers that are gathered
            at the same time.
        gradients: the gradients in the dtype of the trained weights. If they are sharded: one GPU's shard, and the
            gradients of the gathered layers.
        optimiser: AdamW's two moments in the dtype of the trained weights. If they are sharded: one GPU's shard.
        copy: the engine's own copy of the weights with the adapter merged (``engine.copy``).
        predictor: weights, gradients and AdamW's moments of the critic.
        cache: keys and values that the engine keeps, at most ``engine.memory_gb`` unless a single history needs more.
        drawing: keys and values of the replies that are being decoded. Each reply has room for
            ``rollout.sampling.max_tokens`` tokens.
        activations: tensors that the forward pass of the largest micro-batch keeps for its backward pass.
        logits: the logits of a chunk of the update or of a sampling step, whichever are larger. If sampling and
            training overlap: the sum of both.
        earlier: copies of the trained weights before recent updates. They are needed to resample batches of rollouts
            that were interrupted. If they are sharded: one GPU's shards, or 0 if the shards are in CPU memory.
        overlapped: whether sampling runs at the same time as training (``rollout.staleness``).
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
        """The bytes of memory that are in use during the whole run."""
        return self.weights + self.earlier + self.gradients + self.optimiser + self.copy + self.predictor + self.cache

    @property
    def peak(self) -> int:
        """The largest number of bytes in use at a time: the resident memory, the logits, and the additional memory of
        sampling or of training, whichever is larger. If sampling and training overlap, both are added.
        """
        added = (self.drawing, self.activations)
        return self.resident + (sum(added) if self.overlapped else max(added)) + self.logits

    def parts(self) -> dict[str, int]:
        """Returns the bytes of every part of the memory by name, and the ``peak``."""
        return {**{name: size for name, size in asdict(self).items() if name != "overlapped"}, "peak": self.peak}


def cached(shape: Shape, history: float) -> int:
    """Returns the bytes of the keys and values of a history with ``history`` tokens. The length is rounded up to the
    engine's allocation step.
    """
    return -(-max(1, round(history)) // GROW) * GROW * shape.kv_bytes


def at_a_time(cfg: DictConfig, shape: Shape, histories: int, history: float) -> int:
    """Returns how many of ``histories`` histories the engine holds at the same time, with their keys and values
    (``engines.stored_rows.Rows``). ``engine.memory_gb`` limits this number, but it is at least 1 unless ``histories``
    is 0.
    """
    budget = cfg.engine.get("memory_gb")
    return histories if budget is None else min(histories, max(1, int(budget * 1e9) // cached(shape, history)))


def served(cfg: DictConfig) -> bool:
    """Returns whether servers sample (``engine=vllm``), rather than an engine in the processes of the run."""
    return "vllm" in str(cfg.engine.get("_target_"))


def evaluated_at_once(cfg: DictConfig) -> int:
    """Returns the largest number of episodes that an evaluation plays at the same time, but at least 1."""
    return max(1, at_once(served(cfg), int(cfg.eval.tasks) * max(1, int(cfg.eval.attempts))))


def gpus_of(cfg: DictConfig) -> int:
    """Returns the number of GPUs of a run: ``trainer.devices`` times ``trainer.num_nodes``. ``trainer.devices`` may be
    a list of devices; a text that is not a number, such as ``auto``, counts as 1.
    """
    devices, nodes = cfg.trainer.get("devices", 1), cfg.trainer.get("num_nodes", 1)
    each = len(devices) if not isinstance(devices, int | str) else int(devices) if str(devices).isdigit() else 1
    return max(1, each) * int(nodes)


def sharding(cfg: DictConfig) -> tuple[int, bool]:
    """Returns the number of shards of the policy, and whether the shards are in CPU memory."""
    strategy = cfg.trainer.get("strategy")
    if not OmegaConf.is_config(strategy) or not str(strategy.get("_target_")).endswith("FullySharded"):
        return 1, False
    return gpus_of(cfg), bool(strategy.get("offload"))


def micro_batch(cfg: DictConfig, tokens: Tokens) -> tuple[int, int, int]:
    """Returns three numbers of the largest micro-batch of an update: rows, tokens per row, and tokens with a loss."""
    row = max(1, round(tokens.row))
    rows = max(1, int(cfg["update"].batch_tokens) // row)
    rows = min(rows, max(1, round(tokens.stored / row)))
    return rows, row, max(1, round(rows * row * tokens.trained / tokens.stored)) if tokens.stored else 1


def memory(
    cfg: DictConfig, source: Architecture, shape: Shape, tokens: Tokens, around: Around, predictor: Shape | None
) -> Memory:
    """Returns the memory that a run needs on one GPU. Without training (``trainer.max_epochs=0``), the parts that only
    training needs are 0.
    """
    trains = int(cfg.trainer.max_epochs) > 0
    inside = not served(cfg)  # servers use GPUs of their own
    shards, offload = sharding(cfg)
    beside = 0 if offload else 1  # 0 if the shards of the policy are in CPU memory
    layers, outside = shape.layers, shape.head * shape.item * (1 if source.config.tie_word_embeddings else 2)
    # bytes of the embeddings, of the gathered layer and of the next layer
    gathered = outside + 2 * (shape.weight_bytes - outside) // layers if shards > 1 else 0
    lora = LoraSettings(int(cfg.policy.lora.r), float(cfg.policy.lora.alpha))
    rows, row, scored = micro_batch(cfg, tokens)
    held = at_a_time(cfg, shape, ceil(tokens.histories / gpus_of(cfg)), tokens.history)
    played = at_a_time(cfg, shape, evaluated_at_once(cfg), around.history)
    drawn = max(held * tokens.samples, played)
    passes = ("mixed" in str(cfg.trainer.precision), bool(cfg["update"].recompute), bool(cfg["update"].offload))
    kept = activation_bytes(source, str(cfg.policy.dtype), lora, rows, row, scored, *passes) if trains else 0
    ahead = int(cfg.rollout.staleness) if trains else 0
    entries = (CHUNK * TRAINED_LOGIT if trains else 0, inside * drawn * DRAWN_LOGIT)
    return Memory(
        weights=beside * (shape.weight_bytes + shape.adapter_bytes) // shards + gathered,
        gradients=(beside * shape.trained_bytes // shards + (2 * shape.trained_bytes // layers if gathered else 0))
        if trains
        else 0,
        optimiser=beside * 2 * shape.trained_bytes // shards if trains else 0,
        # cfg.engine.get, because cfg.engine.copy is a method; with staleness k, k - 1 further copies wait for the
        # engine
        copy=shape.weight_bytes * max(1, ahead) if cfg.engine.get("copy") else 0,
        predictor=predictor.weight_bytes * 4 if predictor else 0,
        cache=inside * max(held * cached(shape, tokens.history), played * cached(shape, around.history)),
        drawing=inside * round(drawn * int(cfg.rollout.sampling.max_tokens) * shape.kv_bytes),
        activations=kept,
        logits=round((sum(entries) if ahead else max(entries)) * shape.vocabulary),
        earlier=beside * shape.trained_bytes * ahead // shards,
        overlapped=ahead > 0,
    )
