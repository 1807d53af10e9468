"""One RL iteration is one epoch: the train dataloader *is* the collection of this iteration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from lightning import LightningDataModule
from torch.utils.data import DataLoader, IterableDataset

from turnwise.rollouts.pack import Update

Collect = Callable[[int], Update]


class Remembering(Protocol):
    """A collection with a memory from one iteration to the next."""

    memory: dict[str, float]


class Iteration(IterableDataset[Update]):
    """The one update of an iteration, collected when it is asked for.

    It has a length: without one Lightning fetches a batch ahead, and every update would learn from rollouts of the policy
    before the last update.
    """

    def __init__(self, collect: Collect, iteration: int) -> None:
        self.collect, self.iteration = collect, iteration

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Update]:
        yield self.collect(self.iteration)


class Rollouts(LightningDataModule):
    """Args:
    collect: iteration -> its update.
    evaluate: what ``validation_step`` runs; one call measures the policy.
    remembering: whose memory travels in the checkpoint.
    """

    def __init__(
        self, collect: Collect, evaluate: Callable[[], dict[str, float]], remembering: Remembering | None = None
    ) -> None:
        super().__init__()
        self.collect, self.evaluate, self.remembering = collect, evaluate, remembering

    def state_dict(self) -> dict[str, Any]:
        return {} if self.remembering is None else dict(self.remembering.memory)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if self.remembering is not None:
            self.remembering.memory = dict(state_dict)

    def train_dataloader(self) -> Any:
        assert self.trainer is not None
        return DataLoader(Iteration(self.collect, self.trainer.current_epoch), batch_size=None, num_workers=0)

    def val_dataloader(self) -> Any:
        return DataLoader([self.evaluate], batch_size=None, collate_fn=None, num_workers=0)  # type: ignore[arg-type]
