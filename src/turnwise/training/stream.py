"""One RL iteration is one epoch: the train dataloader *is* the collection of this iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from lightning import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

from turnwise.rollouts.pack import Update

Collect = Callable[[int], list[Update]]


class Iteration(IterableDataset[Update]):
    """The updates of one iteration, collected when the first is asked for.

    It has a length: without one Lightning fetches a batch ahead, and every update would learn from rollouts of the policy
    before the last update.
    """

    def __init__(self, collect: Collect, iteration: int, updates: int) -> None:
        self.collect, self.iteration, self.updates = collect, iteration, updates

    def __len__(self) -> int:
        return self.updates

    def __iter__(self) -> Iterator[Update]:
        yield from self.collect(self.iteration)


class Rollouts(LightningDataModule):
    """Args:
    collect: iteration -> its updates, sampled from the policy as it is when called.
    updates: optimiser steps of an iteration.
    evaluate: what ``validation_step`` runs; one call measures the policy.
    """

    def __init__(self, collect: Collect, updates: int, evaluate: Callable[[], dict[str, float]]) -> None:
        super().__init__()
        self.collect, self.updates, self.evaluate = collect, updates, evaluate

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        return DataLoader(Iteration(self.collect, self.trainer.current_epoch, self.updates), batch_size=None, num_workers=0)

    def val_dataloader(self) -> Any:
        return DataLoader([self.evaluate], batch_size=None, collate_fn=None, num_workers=0)  # type: ignore[arg-type]
