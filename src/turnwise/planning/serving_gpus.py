"""Compares the GPUs of the vLLM servers that a run starts itself with the GPUs on which the run trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from omegaconf import DictConfig

from turnwise.planning.gpus import Gpu
from turnwise.planning.memory import Memory, gpus_of, served
from turnwise.planning.parameter_counts import Shape

FRACTION = 0.9  # part of a GPU's memory that a server of vLLM takes without --gpu-memory-utilization
_ACCELERATORS = {"gpu", "cuda"}


def server_conflicts(cfg: DictConfig, shape: Shape, memory: Memory, gpu: Gpu) -> Iterator[str]:
    """Yields a reason if the servers that a run starts itself (``engine.local``) do not fit beside the training, do not
    hold the policy, or use fewer GPUs than train, although the plan counts the trainer's GPUs for sampling.
    """
    if not served(cfg) or cfg.engine.urls or str(cfg.trainer.get("accelerator")) not in _ACCELERATORS:
        return
    local, first = cfg.engine.local, _first_node(cfg)
    arguments = [str(argument) for argument in local.arguments]
    given = _option(arguments, "--tensor-parallel-size", "-tp"), _option(arguments, "--gpu-memory-utilization")
    try:
        sized, fraction = max(1, int(given[0] or 1)), float(given[1] or FRACTION)
    except ValueError as error:
        yield f"engine.local.arguments: an option of the server needs a number ({error})"
        return
    if local.devices is None:  # every server starts on the first GPUs
        serving = {str(place) for place in range(sized)}
    else:  # places, or names such as GPU-8f1c, which are taken for GPUs that do not train
        serving = {place.strip() for places in local.devices for place in str(places).split(",") if place.strip()}
    # servers whose weights are reloaded listen on their own node only
    own = "engine.urls (servers on nodes of their own, which scripts/slurm/train.sbatch starts with SERVE=1) or "
    own = own if shape.adapter else ""
    item = 4 if local.dtype == "float32" else 2
    taken, size = fraction * gpu.memory_gb, shape.weight_bytes / shape.item * item / sized / 1e9
    if size > taken:
        yield (
            f"engine.local: a server takes {taken:,.0f} GB of each of its GPUs, but its part of the weights has {size:,.0f} "
            f"GB; set {own}--tensor-parallel-size in engine.local.arguments, with engine.local.devices"
        )
    if (both := serving & first) and taken + memory.peak / 1e9 > gpu.memory_gb:
        yield (
            f"engine.local: the run starts its servers on GPUs that train ({_listed(both)}), where a server takes "
            f"{taken:,.0f} GB and training {memory.peak / 1e9:,.0f} GB of {gpu.memory_gb:g} GB; set {own}"
            "--gpu-memory-utilization in engine.local.arguments"
        )
    if len(serving) < (training := gpus_of(cfg)):
        yield (
            f"engine.local: the run's servers sample on {len(serving)} of its GPUs, but the plan's GPU-hours of sampling "
            f"are those of {training}; set {own}engine.local.servers and engine.local.devices"
        )


def _first_node(cfg: DictConfig) -> set[str]:
    """Returns the places of the GPUs on which the run trains, on the node of the first process."""
    devices = cfg.trainer.get("devices", 1)
    if not isinstance(devices, int | str):
        return {str(place) for place in devices}
    return {str(place) for place in range(int(devices) if str(devices).isdigit() else 1)}


def _option(arguments: Sequence[str], *names: str) -> str | None:
    """Returns the last value of an option that is written as ``--name=value``, or as two arguments."""
    found = None
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.replace("_", "-") in names:
            found = value if equals else arguments[place + 1] if place + 1 < len(arguments) else found
    return found


def _listed(places: set[str]) -> str:
    return ", ".join(sorted(places, key=lambda place: (len(place), place)))
