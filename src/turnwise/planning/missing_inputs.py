"""Finds what a configured run lacks: files, demonstrations, checkpoints, credentials or memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from math import ceil
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turnwise.planning.architectures import Architecture
from turnwise.planning.gpus import Gpu
from turnwise.planning.lengths import Lengths
from turnwise.planning.memory import Memory, gpus_of, sharding
from turnwise.planning.parameter_counts import Shape
from turnwise.runs.config_hash import flat

PAGE = "docs/cluster.md"
_LINK = re.compile(rf"{re.escape(PAGE)}#([\w-]+)")
_FILES = {"files", "corpus", "games", "data"}  # environment settings that hold a file, or one file per split
SMALLEST_STEP = 2.0**-9  # if |step / weight| is smaller, rounding the updated weight to bfloat16 removes the step


def at_step(reason: str, name: str) -> str:
    """Returns ``reason`` followed by a link to the section ``name`` of docs/cluster.md, which explains the remedy."""
    return f"{reason} ({PAGE}#{name})"


def steps_in(reasons: Iterable[str]) -> list[str]:
    """Returns the names of the sections of docs/cluster.md to which the reasons link, each name once."""
    return list(dict.fromkeys(name for reason in reasons for name in _LINK.findall(reason)))


def missing(
    cfg: DictConfig,
    models: dict[str, Architecture],
    lengths: Lengths,
    shape: Shape | None,
    memory: Memory | None,
    gpu: Gpu,
    world: str,
) -> list[str]:
    """Returns what the run lacks, as one text for each missing item. Each text ends with a link to the section of
    docs/cluster.md that explains the remedy.

    Args:
        models: the architecture of each model by its configuration key, such as ``policy.model``.
        world: the reason why the environment's demonstrations could not be read; empty if they were read.
    """
    found = [at_step(reason, "data-sets") for reason in _files(cfg)]
    if world and not found:
        found.append(at_step(world if world.startswith("env") else f"env: {world}", "environments"))
    limits = list(_room(cfg, lengths))
    for key, source in models.items():
        found += [at_step(reason, "models") for reason in _checkpoint(key, source)]
    found += [at_step(reason, "judges-and-users") for reason in _credentials(cfg)]
    if memory is not None and shape is not None:
        limits += _memory(memory, gpu, sharded=sharding(cfg)[0] > 1)
        limits += _training(cfg, shape)
    return found + [at_step(reason, "what-fits") for reason in limits]


def _files(cfg: DictConfig) -> Iterator[str]:
    named = {key: value for key, value in _settings(cfg).items() if _FILES & set(key.split(".")[-2:])}
    for key, value in {"data.file": cfg.data.file, **named}.items():
        if isinstance(value, str) and not Path(value).exists():
            yield f"{key}: {value} does not exist"


def _settings(cfg: DictConfig) -> dict[str, Any]:
    return flat(OmegaConf.to_container(cfg.env, resolve=True), "env")


def _room(cfg: DictConfig, lengths: Lengths) -> Iterator[str]:
    """Yields a reason if an opening and the longest reply together exceed ``rollout.max_length``. The run would then
    leave out states, or episodes would end before the first turn.
    """
    limit, reply = int(cfg.rollout.max_length), int(cfg.rollout.sampling.max_tokens)
    needed = ceil(lengths.opening) + reply
    if needed > limit:
        yield (
            f"rollout.max_length: an opening of {lengths.opening:,.0f} tokens ({lengths.source['opening']}) and a "
            f"reply of up to {reply:,} tokens exceed {limit:,}, so episodes with this opening end before the first "
            f"turn, and states with this opening are left out; set rollout.max_length to {needed:,} or more, or lower "
            "rollout.sampling.max_tokens"
        )


def _checkpoint(key: str, source: Architecture) -> Iterator[str]:
    folder = source.folder
    if folder is None or not any(folder.glob("*.safetensors")):
        licence = "; the hub requires an accepted licence and a token (HF_TOKEN)" if source.gated else ""
        yield f"{key}: the weights of {source.model} are not on this machine; run `hf download {source.model}`{licence}"


def _credentials(cfg: DictConfig) -> Iterator[str]:
    users = [key for key, value in _settings(cfg).items() if key.endswith(".user") and value == "endpoint"]
    for asked in ("judge", *(f"{key.removesuffix('user')}endpoint" for key in users)):
        variable = OmegaConf.select(cfg, f"{asked}.client.key_variable")
        if variable and not os.environ.get(variable):
            url = OmegaConf.select(cfg, f"{asked}.client.url")
            yield f"{asked}: the environment variable {variable} is not set, so requests to {url} have no key"


def _memory(memory: Memory, gpu: Gpu, sharded: bool) -> Iterator[str]:
    if memory.peak <= gpu.memory_gb * 1e9:
        return
    over = f"the run needs {memory.peak / 1e9:,.0f} GB on a GPU of {gpu.memory_gb:g} GB"
    sizes = {name: size for name, size in memory.parts().items() if name != "peak"}
    largest = max(sizes, key=lambda name: sizes[name])
    remedy = {
        "activations": "set update.recompute=true, then update.offload=true, or lower update.batch_tokens and update.row_tokens",
        "drawing": "lower rollout.sampling.max_tokens, or allocator.group_size",
        "cache": "lower engine.memory_gb, or rollout.max_length",
        "copy": "choose engine=vllm" if sharded else "set engine.copy=false",
        "weights": "set trainer=fsdp on several GPUs",
        "optimiser": "set policy.lora.r above 0, or trainer=fsdp on several GPUs",
        "gradients": "set policy.lora.r above 0, or trainer=fsdp on several GPUs",
        "earlier": "set policy.lora.r above 0, trainer=fsdp and engine=vllm on several GPUs, or rollout.staleness=0",
    }.get(largest, "choose a smaller policy or a larger GPU")
    yield f"GPU memory: {over}; the largest part is {largest} with {sizes[largest] / 1e9:,.0f} GB; {remedy}"


def _training(cfg: DictConfig, shape: Shape) -> Iterator[str]:
    if int(cfg.trainer.max_epochs) < 1:
        return
    rate = float(cfg["update"].learning_rate)
    if cfg.policy.dtype == "bfloat16" and not shape.adapter and rate < SMALLEST_STEP * 0.02:
        yield (
            f"policy.dtype: all weights are trained in bfloat16, in which an AdamW step of {rate:g} on a weight of "
            "0.02 is lost by rounding; set policy.dtype=float32"
        )
    if (gpus := gpus_of(cfg)) > int(cfg.rollout.states):
        yield (
            f"trainer.devices: {gpus} GPUs share the {cfg.rollout.states} states of an iteration, and all rollouts "
            f"of a state are sampled on one GPU; set rollout.states to at least {gpus}, or lower trainer.devices"
        )
