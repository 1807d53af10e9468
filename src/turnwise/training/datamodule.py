"""Defines the Lightning data module of a run. One epoch is one iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lightning import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

from turnwise.rollouts.pack import Update
from turnwise.training.collection import Collection

Collect = Callable[[int], Sequence[Update]]
"""A function that takes the number of an iteration and returns its updates, one for each optimiser step."""


class Iteration(IterableDataset[Update]):
    """The dataset of one iteration: its ``steps`` updates, which are collected when the first update is requested.

    Without a length, Lightning would fetch one batch in advance. The rollouts of an update would then be sampled before
    the previous update has changed the policy.
    """

    def __init__(self, collect: Collect, iteration: int, steps: int) -> None:
        self.collect, self.iteration, self.steps = collect, iteration, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Update]:
        yield from self.collect(self.iteration)


class Rollouts(LightningDataModule):
    """Provides the updates of a run to Lightning's trainer as training batches. A validation batch is the number of the
    iteration after which the policy is evaluated.

    Args:
        collect: function that returns the updates of an iteration.
        remembering: object whose ``memory`` is saved in the checkpoint.
        steps: number of updates (optimiser steps) of an iteration.
    """

    def __init__(self, collect: Collect, remembering: Collection | None = None, steps: int = 1) -> None:
        super().__init__()
        self.collect, self.remembering, self.steps = collect, remembering, steps

    def state_dict(self) -> dict[str, Any]:
        return {} if self.remembering is None else dict(self.remembering.memory)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.remembering is not None:
            self.remembering.memory = dict(state_dict)

    def train_dataloader(self) -> Any:
        updates = Iteration(self.collect, self._iteration, self.steps)
        return DataLoader(updates, batch_size=None, num_workers=0)

    def val_dataloader(self) -> Any:
        return DataLoader(range(self._iteration, self._iteration + 1), batch_size=None, num_workers=0)  # type: ignore[arg-type]

    @property
    def _iteration(self) -> int:
        assert self.trainer is not None
        return self.trainer.current_epoch
