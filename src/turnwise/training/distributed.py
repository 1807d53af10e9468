"""Connects the processes of one run, which share the work and exchange results, and writes the run's checkpoints.

With FSDP2 (``conf/trainer/fsdp.yaml``), weights, gradients and optimiser states are sharded over all processes. The
weights of a layer are gathered when the layer is computed, and freed afterwards. The embedding, the head and the last
norm are gathered once for each pass. A checkpoint is then a folder to which every process writes its own part. A run
with another number of processes can read the checkpoint.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning import Fabric
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.fabric.strategies import DDPStrategy, ParallelStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.strategies import ModelParallelStrategy
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from turnwise.errors import InputError, Stopped
from turnwise.files import PART, atomic_write, writing
from turnwise.models.attention import backbone
from turnwise.models.logprobs import score

T = TypeVar("T")

PATIENCE = timedelta(hours=12)  # how long a process waits for the slowest process; the launcher notices dead processes
POLL = 0.005  # seconds between two checks whether all processes have reached a barrier
LAUNCHER = "lightning.fabric.strategies.launchers.subprocess_script"
# parts of the error messages of gloo and NCCL after another process has ended
LOST = ("Connection reset by peer", "Connection closed by peer", "Broken pipe", "remote process exited")


@dataclass(frozen=True, slots=True)
class DistributedContext:
    """One process of a run, and its connection to the other processes. All processes must call the methods that exchange
    something in the same order.
    """

    rank: int = 0
    world: int = 1
    group: Any = None  # the process group (always gloo) for exchanging Python values; None for a single process
    served: bool = False  # whether servers sample; they have only one client, the first process

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def samples(self) -> bool:
        return self.first or not self.served

    def share(self, items: Sequence[T]) -> list[T]:
        """Returns the part of ``items`` that this process handles: neighbouring items, which share prefixes. If servers
        sample for the run, the first process handles all items.
        """
        if self.served:
            return list(items) if self.first else []
        return list(items[len(items) * self.rank // self.world : len(items) * (self.rank + 1) // self.world])

    def gather(self, mine: list[T]) -> list[T]:
        """Returns, in every process, the lists of all processes joined in the order of the ranks."""
        if self.world == 1:
            return mine
        self.barrier()
        every: list[list[T]] = [[] for _ in range(self.world)]
        dist.all_gather_object(every, mine, group=self.group)
        return [item for part in every for item in part]

    def add(self, mine: Mapping[str, float]) -> dict[str, float]:
        """Returns for each name the sum of its values over all processes. A name may be missing in some of them."""
        whole: dict[str, float] = {}
        for part in self.gather([dict(mine)]):
            for name, value in part.items():
                whole[name] = whole.get(name, 0) + value
        return whole

    def summed(self, tensors: list[Tensor]) -> list[Tensor]:
        """Sums each tensor in place over all processes, with the process group that connects the devices."""
        if self.world > 1:
            self.barrier()
            for tensor in tensors:
                dist.all_reduce(tensor)
        return tensors

    def broadcast(self, value: T) -> T:
        return value if self.world == 1 else self.gather([value])[0]

    def barrier(self) -> None:
        """Waits until all processes have called this method. The method polls, because a process that blocks inside a
        library cannot handle signals.
        """
        if self.world > 1:
            met = dist.barrier(group=self.group, async_op=True)
            while not met.is_completed():
                time.sleep(POLL)
            met.wait()

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Runs the ``with`` block in the first process and then in the others, which can use the files it wrote."""
        if not self.first:
            self.barrier()
        try:
            yield
        finally:
            if self.first:  # after an error too; the other processes then run the block and raise the same error
                self.barrier()

    def sampling(self, served: bool) -> DistributedContext:
        return replace(self, served=served)


@contextmanager
def joined(trainer: DictConfig) -> Iterator[DistributedContext]:
    """Starts the processes that the ``trainer`` settings ask for, unless a launcher (Slurm, torchrun) has, connects them,
    and yields the connection. Lightning itself would start them in ``Trainer.fit``, after all work before training.

    Raises:
        InputError: the settings cannot be used.
        Stopped: another process of the run has ended.
    """
    asked = {name: OmegaConf.select(trainer, name) for name in ("accelerator", "devices", "num_nodes")}
    asked = {"plugins": environments(), **{name: value for name, value in asked.items() if value is not None}}
    try:
        alone = Fabric(**asked)
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        raise InputError(f"trainer: {' '.join(str(error).split())}") from error
    if not isinstance(alone.strategy, ParallelStrategy):
        yield DistributedContext()
        return
    where = alone.strategy.cluster_environment
    if where is not None and not where.creates_processes_externally and _in_multirun():
        raise InputError(
            "trainer.devices: this command starts many runs, but the other processes of a run repeat its command; add "
            "hydra/launcher=slurm_8gpu, which starts all processes of a run, or start one run at a time"
        )
    # gloo is needed in addition to NCCL, for the norms of weight shards that are kept in CPU memory
    backend = "gloo" if alone.device.type == "cpu" else f"cpu:gloo,{alone.device.type}:nccl"
    fabric = Fabric(strategy=DDPStrategy(process_group_backend=backend), **asked)
    logging.getLogger(LAUNCHER).setLevel(logging.INFO)  # this logger's only line names the process that was lost
    fabric.launch()
    group = dist.new_group(backend="gloo", timeout=PATIENCE)
    try:
        distributed = DistributedContext(fabric.global_rank, fabric.world_size, group)
        yield distributed
        distributed.barrier()  # no process may leave while another process still needs the connection
    except RuntimeError as error:
        if not any(words in str(error) for words in LOST):
            raise
        raise Stopped(
            "another process of this run has ended; its own message gives the reason. The same command resumes the run"
        ) from error
    finally:
        dist.destroy_process_group()


def _in_multirun() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def label_of(name: str, seed: int) -> str:
    """Returns the label at the start of each log line of this run. Empty unless several runs share the terminal."""
    # the basic launcher runs one run after the other
    alone = not _in_multirun() or "basic_launcher" in str(HydraConfig.get().launcher._target_)
    return "" if alone else f"{name}/seed{seed}"


def environments() -> list[Any]:
    """Returns Lightning's plugin for Slurm in a Slurm job. Its own requeueing is off, because it would save a checkpoint at
    the moment of the signal, perhaps in the middle of an update; the job's launcher requeues the job (docs/scaling.md).
    """
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file in its folder and then renames it. Lightning writes to the system's temporary
    folder: if that is on another file system, a kill could replace a good checkpoint by half of a new one.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        write_atomically(checkpoint, Path(path))

    def load_checkpoint(self, path: str | Path, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return super().load_checkpoint(path, *args, **kwargs)  # type: ignore[no-any-return]
        except (RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
            raise InputError(
                f"{path} is damaged ({next(iter(str(error).splitlines()), '')[:200]}); put back a copy, or remove "
                f"{Path(path).parent} to train again from the start, with the same result"
            ) from error


def write_atomically(content: dict[str, Any], path: Path) -> None:
    buffer = io.BytesIO()  # torch's own error for a full disk does not name the cause
    torch.save(content, buffer)
    with atomic_write(path) as part:
        part.write_bytes(buffer.getbuffer())


def last_checkpoint(folder: Path) -> Path | None:
    path = folder / "checkpoints" / "last.ckpt"
    return path if path.exists() else None


# -- sharding ----------------------------------------------------------------------------------------------------------


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
        with writing(path), tempfile.TemporaryFile(dir=folder) as asked:
            asked.write(bytes(_PROBE))
            asked.flush()
            os.fsync(asked.fileno())
        raise RuntimeError(f"{path}: {'; '.join(str(failure[0]) for failure in error.failures.values())}") from error


class Whole:
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
