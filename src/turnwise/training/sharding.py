"""Sharded training with FSDP2 (``conf/trainer/fsdp.yaml``): weights, gradients and optimiser states are split over all processes.

The weights of a layer are gathered when the layer is computed, and freed afterwards. The embedding, the head and the last
norm are gathered once for each pass. A checkpoint is then a folder to which every process writes its own part. A run
with another number of processes can read the checkpoint.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from turnwise.files import PART, writing
from turnwise.models.attention import backbone
from turnwise.models.logprobs import score
from turnwise.training.checkpoints import write_atomically

_PROBE = 1 << 20  # bytes of a test write, whose error shows why the disk refused to write


_REST = "rest.pt"  # file for everything except tensors of the weights and the optimiser


TRAINED = StateDictOptions(cpu_offload=True, ignore_frozen_params=True)


class FullySharded(ModelParallelStrategy):
    """Sharded training. With ``offload``, shards are kept in CPU memory, where the optimiser steps."""

    def __init__(self, offload: bool = False) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=True)
        self.offload = offload

    def setup_environment(self) -> None:
        self._data_parallel_size = self.num_nodes * self.num_processes  # Lightning would assume tensor parallelism
        super().setup_environment()

    def shard(self, model: nn.Module) -> None:
        policy = CPUOffloadPolicy(pin_memory=self.root_device.type == "cuda") if self.offload else OffloadPolicy()
        mesh = self.device_mesh["data_parallel"]
        for layer in backbone(model).layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh, offload_policy=policy)
        fully_shard(model, mesh=mesh, offload_policy=policy)
        # a pass over packed trees does not call the model's ``forward``, so FSDP's hooks are set on ``score_packed``
        model.score_packed = MethodType(score, model)  # type: ignore[assignment]
        register_fsdp_forward_method(model, "score_packed")

    # -- checkpoints, which are atomic and contain only the trained weights --------------------------------------------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        assert self.model is not None
        return get_model_state_dict(self.model, options=TRAINED)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        assert self.model is not None
        return get_optimizer_state_dict(self.model, getattr(optimizer, "_optimizer", optimizer), options=TRAINED)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Writes each process's part into a new folder, to which a symbolic link, the checkpoint, then points."""
        path = Path(self.broadcast(str(filepath)))
        before = Path(self.broadcast(str(path.resolve())))
        part = path.with_name(f"{path.stem}-1" if before.name == f"{path.stem}-0" else f"{path.stem}-0")
        if self.is_global_zero:
            shutil.rmtree(part, ignore_errors=True)
        self.barrier()
        tensors = {"weights": checkpoint.pop("state_dict"), "optimizer": checkpoint.pop("optimizer_states")[0]}
        earlier = checkpoint.get("earlier", [])  # policies that sample for later iterations
        tensors["earlier"] = {str(place): policy["weights"] for place, policy in enumerate(earlier)}
        checkpoint["earlier"] = [{"version": policy["version"]} for policy in earlier]
        save_parts(tensors, part, path)
        if self.is_global_zero:
            write_atomically(checkpoint, part / _REST)
        self.barrier()
        if self.is_global_zero:
            link = path.with_name(f".{path.name}{PART}")
            link.unlink(missing_ok=True)
            link.symlink_to(part.name)
            link.replace(path)
            if before.name != path.name:
                shutil.rmtree(before, ignore_errors=True)
        self.barrier()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Loads the weights and optimiser states of a checkpoint, and returns its other entries."""
        path = Path(checkpoint_path)
        assert self.model is not None
        optimizer = self.optimizers[0]
        # if head and embedding share a weight, the weight has two names, of which only one was saved
        trained = {name for name, p in self.model.named_parameters() if p.requires_grad}
        weights = {k: v for k, v in get_model_state_dict(self.model, options=TRAINED).items() if k in trained}
        states = get_optimizer_state_dict(self.model, optimizer, options=TRAINED)
        rest: dict[str, Any] = torch.load(path / _REST, weights_only=True)
        earlier = {}
        for place, policy in enumerate(rest.get("earlier", [])):  # older checkpoints have no such entry
            policy["weights"] = {k: torch.empty_like(p) for k, p in self.model.named_parameters() if k in trained}
            earlier[str(place)] = policy["weights"]
        tensors: dict[str, Any] = {"weights": weights, "optimizer": states, "earlier": earlier}
        dcp.load(tensors, checkpoint_id=path)
        loose = StateDictOptions(cpu_offload=True, ignore_frozen_params=True, strict=False)
        set_model_state_dict(self.model, tensors["weights"], options=loose)
        set_optimizer_state_dict(self.model, optimizer, tensors["optimizer"], options=loose)
        return rest | {"state_dict": {}, "optimizer_states": []}


def save_parts(tensors: dict[str, Any], folder: Path, path: Path) -> None:
    """Writes this process's part of the tensors into ``folder``. An error names ``path``, and a full disk as such."""
    try:
        dcp.save(tensors, checkpoint_id=folder)
    except dcp.api.CheckpointException as error:  # a BaseException, whose message does not name a full disk
        with writing(path), tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(bytes(_PROBE))
            trial.flush()
            os.fsync(trial.fileno())
        raise RuntimeError(f"{path}: {'; '.join(str(failure[0]) for failure in error.failures.values())}") from error


class GatheredModel:
    """A sharded model whose trained weights are gathered, by all processes, in the CPU memory of the first process."""

    def __init__(self, model: Any) -> None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
        self.model, self.state = model, get_model_state_dict(model, options=options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def get_output_embeddings(self) -> Any:
        return SimpleNamespace(weight=self.state["lm_head.weight"])

    def save_pretrained(self, folder: Any, **options: Any) -> None:
        tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
        state = {name: value for name, value in self.state.items() if name not in tied}
        self.model.save_pretrained(folder, state_dict=state, **options)


def is_sharded(model: nn.Module) -> bool:
    return any(isinstance(p, DTensor) for p in model.parameters())
