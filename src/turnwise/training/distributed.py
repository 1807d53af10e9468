"""Starts and connects the processes of one run, which share the work and exchange results."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning import Fabric
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.fabric.strategies import DDPStrategy, ParallelStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from turnwise.errors import InputError, Stopped

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


@contextmanager
def joined(trainer: DictConfig) -> Iterator[DistributedContext]:
    """Starts the processes that the ``trainer`` settings ask for, unless a launcher (Slurm, torchrun) has, connects them,
    and yields the connection. Lightning itself would start them in ``Trainer.fit``, after all work before training.

    Raises:
        InputError: the settings cannot be used.
        Stopped: another process of the run has ended.
    """
    options = {name: OmegaConf.select(trainer, name) for name in ("accelerator", "devices", "num_nodes")}
    options = {"plugins": environments(), **{name: value for name, value in options.items() if value is not None}}
    try:
        alone = Fabric(**options)
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        raise InputError(f"trainer: {' '.join(str(error).split())}") from error
    if not isinstance(alone.strategy, ParallelStrategy):
        yield DistributedContext()
        return
    where = alone.strategy.cluster_environment
    if where is not None and not where.creates_processes_externally and in_multirun():
        raise InputError(
            "trainer.devices: this command starts many runs, but the other processes of a run repeat its command; add "
            "hydra/launcher=slurm_8gpu, which starts all processes of a run, or start one run at a time"
        )
    # gloo is needed in addition to NCCL, for the norms of weight shards that are kept in CPU memory
    backend = "gloo" if alone.device.type == "cpu" else f"cpu:gloo,{alone.device.type}:nccl"
    fabric = Fabric(strategy=DDPStrategy(process_group_backend=backend), **options)
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


def in_multirun() -> bool:
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def environments() -> list[Any]:
    """Returns Lightning's plugin for Slurm in a Slurm job. Its own requeueing is off, because it would save a checkpoint at
    the moment of the signal, perhaps in the middle of an update; the job's launcher requeues the job (docs/scaling.md).
    """
    return [SLURMEnvironment(auto_requeue=False)] if SLURMEnvironment.detect() else []
