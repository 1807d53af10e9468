"""Estimates what a configured run needs: tokens, memory of a GPU, and GPU-hours. No weights are loaded or downloaded.

The model is built on torch's meta device, so parameter counts are exact. Tokens follow from the lengths of
demonstrations (or of limits in the configuration) and from the run's own allocator. Times follow the roofline model.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import ceil
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
import yaml
from huggingface_hub import try_to_load_from_cache
from omegaconf import DictConfig, OmegaConf
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from turnwise.config.schema import build, build_node
from turnwise.config.settings import LoraSettings
from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.template_dialect import dialect_of
from turnwise.data.trajectories import read_trajectories
from turnwise.engines.cache import GROW
from turnwise.errors import InputError
from turnwise.evaluation.skills import SKILLS
from turnwise.evaluation.suites import at_once
from turnwise.files import expanded
from turnwise.models.policy import with_adapter
from turnwise.rollouts.pack import row_limit
from turnwise.runs.run_folder import flat_record
from turnwise.shipped import WORLDS, tiny_path, weights_of
from turnwise.training.build_run import kept_of_token
from turnwise.training.candidates import expert_file
from turnwise.training.profile import TOGETHER as SHARD
from turnwise.types import RolloutTree, State, Task, Turn


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's data sheet: memory in 10^9 bytes, dense bfloat16 TFLOP/s, memory bandwidth in TB/s."""

    memory_gb: float
    peak_tflops: float
    bandwidth_tb_s: float

    def seconds(self, flops: float, moved: float = 0.0) -> float:
        """The time to compute, or to move ``moved`` bytes, whichever is longer."""
        computing = flops / (self.peak_tflops * 1e12 * UTILISATION)
        return max(computing, moved / (self.bandwidth_tb_s * 1e12 * BANDWIDTH_UTILISATION))


GPUS = {
    "a100": Gpu(80.0, 312.0, 2.04),
    "h100": Gpu(80.0, 989.0, 3.35),
    "h200": Gpu(141.0, 989.0, 4.8),
    "b200": Gpu(180.0, 2250.0, 8.0),
}
UTILISATION, BANDWIDTH_UTILISATION = 0.35, 0.5  # shares of its peaks that a program reaches
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # keys of a config.json with a mixture of experts
CHUNK = 1024  # positions whose logits the update holds in memory at once (tensors.selected_logprobs)
TRAINED_LOGIT = 20  # bytes per logit of an update: product, float32 logits, log-probs, probabilities, gradient
DRAWN_LOGIT = 34  # bytes per logit in engines.decoding: product, four float32 copies and two float64 copies
SAMPLE = 16  # demonstrations whose lengths are averaged
ANSWER = 24  # assumed tokens of an answer to an out-of-domain item


def architecture(model: str) -> tuple[PretrainedConfig, Path | None]:
    """The configuration of a value of ``policy.model``, and its local folder, if it has one. An id that is not in the
    Hugging Face cache may be in architectures.yaml. Raises InputError for any other model.
    """
    folder = Path(weights_of(model))
    if not folder.is_dir() and model.count("/") == 1:
        cached = try_to_load_from_cache(model, "config.json")
        folder = Path(cached).parent if isinstance(cached, str) else folder
    if (folder / "config.json").is_file():
        return AutoConfig.from_pretrained(folder, trust_remote_code=False), folder
    facts = yaml.safe_load((files("turnwise_study") / "architectures.yaml").read_text(encoding="utf-8"))
    if model not in facts:
        raise InputError(
            f"policy.model={model}: there is no such folder with a config.json, the model is not in the Hugging Face "
            "cache, and its shape is not in src/turnwise_study/architectures.yaml; download its config.json"
        )
    shape = {key: value for key, value in facts[model].items() if key != "gated"}
    return AutoConfig.for_model(shape.pop("model_type"), **shape), None


@dataclass(frozen=True, slots=True)
class Shape:
    """Counts of a model's parameters. ``matmul`` counts the entries of the matrices that one token passes, without
    embedding and head (V x D); ``adapter_matmul`` those of LoRA outside experts, whose adapters are merged once a pass.
    """

    matmul: int
    adapter: int
    adapter_matmul: int
    head: int
    weight_bytes: int
    adapter_bytes: int
    trained_bytes: int
    layers: int
    heads: int
    head_dim: int
    kv_bytes: int  # keys and values of one token
    vocabulary: int
    item: int

    def cached(self, history: float) -> int:
        """The bytes of a history's keys and values, rounded up to the engine's allocation step."""
        return -(-max(1, round(history)) // GROW) * GROW * self.kv_bytes


def shape_of(config: Any, dtype: str, lora: LoraSettings | None = None, layers: int | None = None) -> Shape:
    """The shape of a model of ``layers`` layers (None: all). Without ``lora``, all weights are trained."""
    cut = {} if layers is None else {"num_hidden_layers": layers}
    if cut and getattr(config, "layer_types", None):
        cut["layer_types"] = config.layer_types[:layers]
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a patch of peft warns about layers that a dense block does not have
        whole = type(config)(**{**config.to_dict(), **cut})
        model: Any = AutoModelForCausalLM.from_config(whole, dtype=getattr(torch, dtype))
        model.tie_weights()
        if lora is not None and lora.r:
            model = with_adapter(model, lora.r, lora.alpha, lora.dropout, empty=True)
    named: dict[str, nn.Parameter] = dict(model.named_parameters())  # tied weights once
    base = {name: p for name, p in named.items() if "lora_" not in name}
    adapter = {name: p for name, p in named.items() if "lora_" in name}
    experts = sum(p.numel() for name, p in base.items() if ".experts." in name)
    routed = getattr(config, "num_experts_per_tok", 0) / max([1, *(getattr(config, key, 0) or 0 for key in EXPERTS)])
    ends = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    dense = (p for name, p in base.items() if p.ndim > 1 and ".experts." not in name and all(p is not e for e in ends))
    trained = [p for p in named.values() if p.requires_grad]
    layers, item = config.num_hidden_layers if layers is None else layers, getattr(torch, dtype).itemsize
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def count(parameters: Iterable[nn.Parameter]) -> int:
        return sum(p.numel() for p in parameters)

    def size(parameters: Iterable[nn.Parameter]) -> int:
        return sum(p.numel() * p.element_size() for p in parameters)

    return Shape(
        count(dense) + round(routed * experts), count(adapter.values()),
        count(p for name, p in adapter.items() if ".experts." not in name), ends[1].numel(),
        size(base.values()), size(adapter.values()), size(trained), layers, config.num_attention_heads, head_dim,
        2 * layers * config.num_key_value_heads * head_dim * item, config.vocab_size, item,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths in tokens of the history before the first turn, of a reply, of an answer of the environment and of a
    demonstrated action (``spoken``), and in turns of a demonstration and of an episode.
    """

    opening: float
    reply: float
    observation: float
    demonstrated: float
    spoken: float
    episode: float
    measured: bool  # on demonstrations; otherwise those that the user did not give are upper bounds


def planned_lengths(cfg: DictConfig, folder: Path | None, given: Mapping[str, float | None]) -> Lengths:
    """The lengths that the user gives, else those of demonstrations, else upper bounds. A shipped policy replies as
    demonstrated, any other with ``rollout.sampling.max_tokens`` tokens. An episode lasts for the environment's horizon,
    because a policy that fails plays until the horizon.
    """
    limit, longest = float(cfg.rollout.sampling.max_tokens), int(cfg.rollout.max_length)
    own = folder is not None and (folder / "tokenizer_config.json").is_file()
    env = OmegaConf.to_container(cfg.env, resolve=True)
    seen = _demonstration_lengths(
        cfg.data.file, json.dumps(env, sort_keys=True), float(cfg.data.good), str(folder if own else tiny_path())
    )
    horizons = [float(value) for key, value in flat_record(env, "env").items() if key.endswith(".horizon")]
    known = seen | {"reply": min(seen["spoken"], limit) if seen and cfg.policy.model in WORLDS else limit}
    known["episode"] = max(horizons, default=seen.get("demonstrated", float("inf")))
    known |= {name: value for name, value in given.items() if value is not None}
    if not seen:  # all replies of an episode take at most half of the history; opening and observations share the rest
        if given.get("episode") is None:
            known["episode"] = min(known["episode"], max(1.0, longest // (2 * known["reply"])))
        share = max(0.0, longest - known["episode"] * known["reply"]) / (1 + known["episode"])
        bounds = {"opening": share, "observation": share}
        known = bounds | {"demonstrated": known["episode"], "spoken": known["reply"]} | known
    turn = known["reply"] + known["observation"]
    known["episode"] = min(known["episode"], max(1.0, (longest - known["opening"]) / turn) if turn else 1.0)
    return Lengths(**known, measured=bool(seen))


@cache
def _demonstration_lengths(file: str | None, env: str, good: float, folder: str) -> dict[str, float]:
    try:
        with TemporaryDirectory() as place:
            path = file or expert_file(build_node(json.loads(env), "env"), SAMPLE, place, good)
            trajectories = read_trajectories(path, most=SAMPLE).trajectories
    except (ValueError, OSError, RuntimeError):  # the environment is not installed, or a file is missing
        if file and expanded(file).is_file():
            raise
        return {}
    chat = ChatTokens(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    dialect = dialect_of(chat)
    openings, actions, observations, turns = list[float](), list[float](), list[float](), list[float]()
    for trajectory in trajectories:
        shown = trajectory if trajectory.task else dialect(trajectory)
        texts = shown.messages, shown.tools
        spines = [chat.reply(*texts)] if shown.pivot else chat.spines(*texts)
        openings.append(spines[0].turns[0][0])
        turns.append(sum(len(spine.turns) for spine in spines))
        for spine in spines:
            actions += [stop - start for start, stop in spine.turns]
            observations += [after[0] - before[1] for before, after in zip(spine.turns, spine.turns[1:])]
    means = {"opening": openings, "observation": observations or [0.0], "demonstrated": turns, "spoken": actions}
    return {name: fmean(values) for name, values in means.items()}


PLAYED = ("rollouts", "turns", "depth", "sampled", "prefilled", "before", "context", "histories", "history", "samples")
Tokens = dict[str, float]
"""Token counts of one iteration, if every group is used, and of all profiles and evaluations together.

``sampled`` tokens of ``turns`` replies (``depth`` a rollout) attend to ``context`` tokens on average, after ``before``
tokens; the engine prefills ``prefilled`` tokens and holds ``histories`` of ``history`` tokens, each with ``samples`` replies
at a time. The update has ``trained`` tokens with a loss and ``stored`` tokens in packed rows of ``row`` tokens.
"""


def token_counts(cfg: DictConfig, known: Lengths) -> Tokens:
    states, counts = int(cfg.rollout.states), _planned_evaluations(cfg, known)
    spoken = known.spoken + known.observation
    if OmegaConf.select(cfg, "allocator._target_") is None:  # imitation of whole demonstrations
        spine = known.opening + known.demonstrated * spoken - known.observation
        trained = known.demonstrated * states * known.spoken
        none = dict.fromkeys(PLAYED, 0.0)
        return counts | none | {"trained": trained, "stored": states * spine, "row": spine}
    demonstrated = not str(OmegaConf.select(cfg, "states._target_")).endswith("TaskStarts")
    before = known.opening + ((known.demonstrated - 1) / 2 * spoken if demonstrated else 0)
    depth = min(float(cfg.rollout.turns or known.episode), known.episode)
    roots, continued = _planned_rollouts(cfg, states, depth)
    rollouts, turns = roots + len(continued), roots * depth + sum(continued)
    sampled, history = turns * known.reply, before + depth * (known.reply + known.observation)
    answered = max(0.0, turns - rollouts) * known.observation  # no observation follows the last turn
    spines, spine, samples, shared, own = states, before, 1.0, before, (sampled + answered) / states
    histories = rollouts
    if depth == 1:  # the states of one trajectory share a history
        trajectories = int(cfg.rollout.trajectories or ceil(states / known.demonstrated))
        spines = histories = min(states, trajectories) if demonstrated else states
        each = states / spines
        spine = before if each <= 1 else known.opening + known.demonstrated * each / (each + 1) * spoken
        history, samples, shared, own = spine, rollouts / spines, spine, sampled / spines
    room = row_limit(shared, float(cfg["update"].row_tokens)) - shared
    rows = max(1, ceil(own / max(room, own * spines / max(turns, spines))))  # each row of a tree repeats the prefix
    context = before + (depth - 1) / 2 * (known.reply + known.observation) + known.reply / 2
    played = (rollouts, turns, depth, sampled, spines * spine + answered)
    kept = (before, context, histories, history, samples)
    update = {"trained": sampled, "stored": spines * (rows * shared + own), "row": shared + own / rows}
    return counts | dict(zip(PLAYED, (*played, *kept), strict=True)) | update


def _planned_rollouts(cfg: DictConfig, states: int, depth: float) -> tuple[int, list[float]]:
    """The number of rollouts from the roots, and the turns of each continuation, if every second rollout is won."""
    allocator = build(
        cfg, "allocator", value=lambda trees: [[0.5] * (1 + len(tree.turns)) for tree in trees],
        reward=lambda tree: {"total": [float(i % 2) for i, _ in enumerate(tree.leaves())]},
    )  # fmt: skip
    starts = [State(f"planned/{i}", Task("", str(i), "train"), (0,)) for i in range(states)]
    counts, whole, trees = allocator(starts), max(1, round(depth)), []
    for state, count in zip(starts, counts, strict=True):
        trees.append(tree := RolloutTree(state))
        for rollout in range(count):
            for turn in range(whole):
                tree.turns.append(Turn(len(tree.turns) - 1 if turn else -1, [0], [0.0]))
            leaf, won = tree.turns[-1], bool(rollout % 2)
            leaf.done, leaf.reward, leaf.info = True, float(won), {"won": won}
    branches = ((tree, turn, n) for tree, some in zip(trees, allocator.expand(trees)) for turn, n in some.items())
    continued = [[depth - len(tree.path(turn)) / whole * depth] * n for tree, turn, n in branches]
    return sum(counts), [turns for some in continued for turns in some]


def _planned_evaluations(cfg: DictConfig, known: Lengths) -> Tokens:
    path, number = Path(cfg.data.file or ""), int(cfg.data.trajectories)
    if path.is_file() and path.suffix != ".parquet":
        with path.open("rb") as stream:
            number = sum(1 for line in stream if line.strip())
    k = int(OmegaConf.select(cfg, "states.k", default=0) or 0)
    refreshed = OmegaConf.select(cfg, "states.refresh", default=None) is not None
    profiles = int(cfg.states.refresh_most) if refreshed else 1
    spine = known.opening + known.demonstrated * (known.spoken + known.observation)
    epochs, every = int(cfg.trainer.max_epochs), int(cfg.eval.every)
    times = 2 + (max(epochs - 1, 0) // every if every else 0)
    plays = not cfg.data.file if cfg.eval.environment is None else cfg.eval.environment
    attempts = int(cfg.eval.attempts) + 1
    episodes = int(cfg.eval.tasks) * attempts if plays else 0
    held = number * float(cfg.data.held_out) if cfg.data.file else 0.0
    items = (len(SKILLS) + len(cfg.eval.suites or {})) * int(cfg.eval["items"])
    history = known.opening + known.episode * (known.reply + known.observation)
    return {
        "states": int(cfg.rollout.states),
        "profiled": profiles * k * number * known.demonstrated * known.reply,
        "profiled_prefill": profiles * number * spine if k else 0.0,
        "evaluated": times
        * ((episodes * known.episode + held * attempts * known.demonstrated) * known.reply + items * ANSWER),
        "evaluated_prefill": times * (episodes * (known.opening + known.episode * known.observation) + held * spine),
        "evaluated_context": (known.opening + history) / 2,
        "evaluated_history": history,
    }


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What one run needs. ``memory`` is in bytes on one GPU by part, ``gpu_hours`` by part. Both are empty if the shape
    of the policy is unknown; then ``unknown`` says why.
    """

    model: str
    steps: int
    gpus: int
    lengths: Lengths
    tokens: Tokens
    shape: Shape | None = None
    memory: Mapping[str, float] = field(default_factory=dict)
    gpu_hours: Mapping[str, float] = field(default_factory=dict)
    unknown: str = ""


def plan(cfg: DictConfig, gpu: Gpu, given: Mapping[str, float | None] | None = None) -> RunPlan:
    """``given`` holds lengths (fields of :class:`Lengths`) that the user knows better."""
    devices = cfg.trainer.get("devices", 1)
    each = len(devices) if not isinstance(devices, int | str) else int(devices) if str(devices).isdigit() else 1
    gpus = max(1, each) * int(cfg.trainer.get("num_nodes", 1))
    config, folder, predictor, unknown = None, None, None, ""
    try:
        config, folder = architecture(str(cfg.policy.model))
        if (base := OmegaConf.select(cfg, "predictor.model")) is not None:
            predictor = shape_of(architecture(str(base))[0], str(cfg.predictor.dtype), None, cfg.predictor.layers)
    except InputError as error:
        unknown = str(error)
    known = planned_lengths(cfg, folder, given or {})
    tokens = token_counts(cfg, known)
    about = (str(cfg.policy.model), int(cfg.trainer.max_epochs), gpus, known, tokens)
    if unknown:
        return RunPlan(*about, unknown=unknown)
    shape = shape_of(config, str(cfg.policy.dtype), LoraSettings(int(cfg.policy.lora.r), float(cfg.policy.lora.alpha)))
    memory = memory_of(cfg, config, shape, tokens, predictor, gpus)
    return RunPlan(*about, shape, memory, hours_of(cfg, shape, tokens, predictor, gpu, gpus, known))


def _together(cfg: DictConfig, shape: Shape, histories: int, history: float) -> int:
    """The number of histories that the engine holds at a time."""
    budget = cfg.engine.get("memory_gb")
    return histories if budget is None else min(histories, max(1, int(budget * 1e9) // shape.cached(history)))


def _served(cfg: DictConfig) -> bool:
    return "vllm" in str(cfg.engine.get("_target_"))


def _evaluated(cfg: DictConfig, shape: Shape, tokens: Tokens) -> int:
    """The number of episodes that an evaluation plays at a time."""
    episodes = max(1, at_once(_served(cfg), int(cfg.eval.tasks) * max(1, int(cfg.eval.attempts))))
    return _together(cfg, shape, episodes, tokens["evaluated_history"])


def memory_of(
    cfg: DictConfig, config: Any, shape: Shape, tokens: Tokens, predictor: Shape | None, gpus: int
) -> dict[str, float]:
    """Part -> bytes on one GPU, and the ``peak``: what stays, plus the larger of sampling (``drawing``) and training
    (``activations``), or both if they overlap (``rollout.staleness``).
    """
    trains, inside, strategy = int(cfg.trainer.max_epochs) > 0, not _served(cfg), cfg.trainer.get("strategy")
    sharded = OmegaConf.is_config(strategy) and str(strategy.get("_target_")).endswith("FullySharded")
    shards, there = (gpus, 0 if strategy.get("offload") else 1) if sharded else (1, 1)
    outside = shape.head * shape.item * (1 if config.tie_word_embeddings else 2)
    gathered = outside + 2 * (shape.weight_bytes - outside) // shape.layers if shards > 1 else 0
    row = max(1, round(tokens["row"]))
    packed = row * min(max(1, int(cfg["update"].batch_tokens) // row), max(1, round(tokens["stored"] / row)))
    kept = kept_of_token(config, shape.item) * packed
    if cfg["update"].recompute:  # one layer, and the inputs of all layers, unless these are on the CPU
        inputs = 1 if cfg["update"].offload else shape.layers
        kept = kept // shape.layers + inputs * packed * config.hidden_size * shape.item
    held = _together(cfg, shape, ceil(tokens["histories"] / gpus), tokens["history"])
    played = _evaluated(cfg, shape, tokens)
    drawn, ahead = max(held * tokens["samples"], played), int(cfg.rollout.staleness) if trains else 0
    logits = (CHUNK * TRAINED_LOGIT if trains else 0, inside * drawn * DRAWN_LOGIT)
    gradients = there * shape.trained_bytes // shards + (2 * shape.trained_bytes // shape.layers if gathered else 0)
    cached = held * shape.cached(tokens["history"]), played * shape.cached(tokens["evaluated_history"])
    stays = {
        "weights": there * (shape.weight_bytes + shape.adapter_bytes) // shards + gathered,
        "earlier": there * shape.trained_bytes * ahead // shards,  # copies before recent updates, to resample
        "gradients": gradients if trains else 0,
        "optimiser": there * 2 * shape.trained_bytes // shards if trains else 0,
        "copy": shape.weight_bytes * max(1, ahead) if cfg.engine.get("copy") else 0,
        "predictor": predictor.weight_bytes * 4 if predictor else 0,
        "cache": inside * max(cached),
    }
    passing = {
        "drawing": inside * round(drawn * int(cfg.rollout.sampling.max_tokens) * shape.kv_bytes),
        "activations": kept if trains else 0,
    }
    combined = sum if ahead else max
    most = round(combined(logits) * shape.vocabulary)
    return {**stays, **passing, "logits": most, "peak": sum(stays.values()) + combined(passing.values()) + most}


def hours_of(
    cfg: DictConfig, shape: Shape, tokens: Tokens, predictor: Shape | None, gpu: Gpu, gpus: int, known: Lengths
) -> dict[str, float]:
    """Part -> GPU-hours. A decoding step reads the weights once, and the keys and values of each reply; prefill and
    updates are limited by computation. Environments, judges, loading and saving are not counted.
    """
    steps, recompute, frozen = int(cfg.trainer.max_epochs), bool(cfg["update"].recompute), cfg.rollout.frozen
    collections = steps if frozen is None else int(frozen) / int(cfg.rollout.states)

    def attention(of: Shape, tokens: float, context: float) -> float:
        return 4.0 * of.layers * of.heads * of.head_dim * tokens * context

    def forward(of: Shape, tokens: float, context: float, scored: float) -> float:
        layers = 2.0 * (of.matmul + of.adapter_matmul) * tokens
        return layers + attention(of, tokens, context) + 2.0 * of.head * scored

    def backward(of: Shape, tokens: float, context: float, scored: float, again: bool = False) -> float:
        full = of.adapter == 0  # gradients of weights are computed only where they are trained
        layers = 2.0 * ((2 if full else 1) * of.matmul + 2 * of.adapter_matmul) * tokens
        head = 2.0 * of.head * scored * (3 if full else 2)
        return layers + 2 * attention(of, tokens, context) + head + (forward(of, tokens, context, 0) if again else 0.0)

    def sampling(sampled: float, prefilled: float, context: float, samples: float, rounds: float) -> float:
        decode = 2.0 * (shape.matmul + shape.head) * sampled + attention(shape, sampled, context)
        prefill = 2.0 * shape.matmul * prefilled + attention(shape, prefilled, context / 2)
        read = sampled / max(1.0, samples) * context + sampled * known.reply / 2  # a history is read for its replies
        return gpu.seconds(decode, rounds * shape.weight_bytes + read * shape.kv_bytes) + gpu.seconds(prefill)

    share = ceil(tokens["histories"] / gpus)
    groups = gpus * ceil(share / max(1, _together(cfg, shape, share, tokens["history"])))
    sampled, prefilled = (collections * tokens[name] for name in ("sampled", "prefilled"))
    rounds = collections * groups * tokens["depth"] * known.reply
    update = (shape, steps * tokens["stored"], tokens["row"], steps * tokens["trained"])
    k = int(OmegaConf.select(cfg, "states.k", default=0) or 1)
    profiled = min(SHARD, max(1.0, _together(cfg, shape, SHARD, tokens["history"]) * k * known.demonstrated))
    critic = 0.0
    if predictor is not None:
        taught = tokens["states"] * tokens["before"] / (1 - float(cfg.predictor.prefix_share))
        learning = sum(part(predictor, taught, tokens["before"], 0) for part in (forward, backward))
        asked = forward(predictor, tokens["prefilled"] + tokens["sampled"], tokens["context"], 0)
        critic = steps * (asked + int(cfg.predictor.epochs) * learning)
    seconds = {
        "sampling": sampling(sampled, prefilled, tokens["context"], tokens["samples"], rounds),
        "forward": gpu.seconds(forward(*update)),
        "backward": gpu.seconds(backward(*update, recompute)),
        "reference": gpu.seconds(forward(*update)) if float(cfg.loss.get("kl_beta") or 0) > 0 else 0.0,
        "predictor": gpu.seconds(critic),
        "profile": sampling(
            tokens["profiled"], tokens["profiled_prefill"], tokens["context"], k, tokens["profiled"] / profiled
        ),
        "evaluation": sampling(
            tokens["evaluated"], tokens["evaluated_prefill"], tokens["evaluated_context"], 1,
            tokens["evaluated"] / _evaluated(cfg, shape, tokens),
        ),
    }  # fmt: skip
    hours = {part: value / 3600 for part, value in seconds.items()}
    return {**hours, "total": sum(hours.values())}
