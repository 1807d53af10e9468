"""Lightning's Trainer as a run has it, without what it would print or leave behind."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import lightning as L

from turnwise.types import RolloutTree, State, Task, Turn


def trainer(folder: Path, epochs: int, callbacks: Sequence[L.Callback] = ()) -> L.Trainer:
    """One iteration an epoch, on the CPU."""
    return L.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        reload_dataloaders_every_n_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        default_root_dir=str(folder),
    )


def random_trees(states: Sequence[int], actions: Sequence[int] = (3, 5), seed: int = 0) -> list[RolloutTree]:
    """A tree for each length of a state, with one turn of random tokens from the root for each length of an action."""
    rng = random.Random(seed)
    trees = []
    for number, length in enumerate(states):
        state, *turns = ([rng.randrange(6, 97) for _ in range(count)] for count in (length, *actions))
        tree = RolloutTree(State(str(number), Task("toy", str(number), "train"), tuple(state)))
        tree.turns = [Turn(-1, action, [-rng.uniform(1, 6) for _ in action]) for action in turns]
        trees.append(tree)
    return trees
