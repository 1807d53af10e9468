"""Connects the processes of one run, which share the work and exchange results, and writes the run's checkpoints."""

from __future__ import annotations

import io
import logging
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning import Fabric
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.fabric.strategies import DDPStrategy, ParallelStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins.io import TorchCheckpointIO
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from turnwise.errors import InputError, Stopped
from turnwise.files import atomic_write

T = TypeVar("T")

PATIENCE = timedelta(hours=12)  # how long a process waits for the slowest process; the launcher notices dead processes
POLL = 0.005  # seconds between two checks whether all processes have reached a barrier
LAUNCHER = "lightning.fabric.strategies.launchers.subprocess_script"
# parts of the error messages of gloo and NCCL after another process has ended
LOST = ("Connection reset by peer", "Connection closed by peer", "Broken pipe", "remote process exited")


@dataclass(frozen=True, slots=True)
class DistributedContext:
    """One process of a run, and its connection to the other processes.

    All processes must call :meth:`gather`, :meth:`add`, :meth:`summed`, :meth:`broadcast`, :meth:`barrier` and
    :meth:`first_alone` in the same order.

    Attributes:
        rank: number of this process, from 0.
        world: number of processes.
        group: the process group (always gloo) for exchanging Python values. None for a single process.
        served: whether the engine runs in servers outside of these processes. Servers have only one client, so the
            first process samples for all processes.
    """

    rank: int = 0
    world: int = 1
    group: Any = None
    served: bool = False

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def samples(self) -> bool:
        return self.first or not self.served

    def share(self, items: Sequence[T]) -> list[T]:
        """Returns the part of ``items`` that this process handles.

        The part is contiguous, because neighbouring items share prefixes. :meth:`gather` joins the results of the parts
        in the order of ``items``. If servers sample for the run (``served``), the first process handles all items.
        """
        if self.served:
            return list(items) if self.first else []
        return list(items[len(items) * self.rank // self.world : len(items) * (self.rank + 1) // self.world])

    def gather(self, mine: list[T]) -> list[T]:
        """Returns, in every process, the concatenation of the lists of all processes in the order of the ranks."""
        if self.world == 1:
            return mine
        self.barrier()
        every: list[list[T]] = [[] for _ in range(self.world)]
        dist.all_gather_object(every, mine, group=self.group)
        return [item for part in every for item in part]

    def add(self, mine: Mapping[str, float]) -> dict[str, float]:
        """Returns for each name the sum of its values over all processes. A name may be missing in some of them."""
        if self.world == 1:
            return dict(mine)
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
        """Runs the ``with`` block in the first process and then in the other processes, which can use the files that
        the first process wrote.
        """
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
    """Starts the processes that the ``trainer`` settings ask for, connects them, and yields the connection.

    Processes that a launcher (Slurm, torchrun) has started are only connected. Lightning itself would start the
    processes in ``Trainer.fit``, so that a single process would do all work before training.

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
            "trainer.devices: the first process of a run starts the other processes with its own command, but this "
            "command starts many runs; add hydra/launcher=slurm_8gpu, which starts all processes of a run, or start "
            "one run at a time"
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
            "another process of this run has ended; the message of that process, if there is one, gives the reason. "
            "The same command resumes from the last checkpoint"
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
    """Returns a list with Lightning's plugin for Slurm in a Slurm job, else an empty list.

    Lightning's own requeueing is switched off, because it saves a checkpoint at the moment of the signal, which may be
    in the middle of an update. The job's launcher requeues the job instead (docs/scaling.md).
    """
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file in the checkpoint's folder and then renames the file.

    Lightning's own class writes to the system's temporary folder instead. If this folder is on another file system,
    moving the file copies it, so that a kill or a full disk could replace a good checkpoint by half of a new
    checkpoint.
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
