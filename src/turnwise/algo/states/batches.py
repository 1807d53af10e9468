"""Chooses the states of each iteration. The choice depends only on the states, the seed and the iteration."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turnwise.errors import InputError
from turnwise.types import State


@dataclass(slots=True)
class Batches:
    """Returns the states of an iteration when it is called with the number of that iteration.

    Iterations go through the states in epochs, and within an epoch no state occurs twice. An epoch has as many full
    batches as the number of states allows. The remaining states are left out of this epoch. They differ from epoch to
    epoch. If there are fewer states than a batch needs, one batch holds all of them. States of one trajectory are
    placed next to each other in the order of their turns, because they share tokens.

    A resumed run needs no stored position. The order of the states in the last epoch is cached (16 bytes per state and
    8 bytes per trajectory).

    Args:
        states: all states of the run. They must be the same, in the same order, whenever the run is started or resumed.
        seed: seed of the random order. A different set of states needs a different seed.
        states_per_batch: greatest number of states in a batch.
        trajectories_per_batch: approximate number of trajectories in a batch. None uses whole trajectories. With fewer
            trajectories, more tokens are shared; with more, the states are more diverse.
        first: the iteration with which the first epoch begins.

    Raises:
        InputError: there are no states.
        ValueError: a number is out of range.
    """

    states: Sequence[State]
    seed: int | str
    states_per_batch: int
    trajectories_per_batch: int | None = None
    first: int = 0
    _groups_S: NDArray[np.int64] | None = field(default=None, init=False, repr=False)
    _epoch: int = field(default=-1, init=False, repr=False)
    _order_S: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)

    def __call__(self, iteration: int) -> list[State]:
        size, spread = self.states_per_batch, self.trajectories_per_batch
        if not self.states:
            raise InputError(
                "no state is left to train on; set states.keep=mixed or states.keep=all, raise states.lambda_diff, "
                "or give more trajectories"
            )
        if iteration < self.first or size < 1:
            raise ValueError(
                f"iteration={iteration} must be at least {self.first}, and states_per_batch={size} must be at least 1"
            )
        if spread is not None and not 1 <= spread <= size:
            raise ValueError(f"trajectories_per_batch must be from 1 to states_per_batch ({size}), got {spread}")
        if self._groups_S is None:
            self._groups_S = _groups(self.states)
        epoch, nth = divmod(iteration - self.first, max(1, len(self.states) // size))
        if epoch != self._epoch:
            chunk = size if spread is None else -(-size // spread)
            self._order_S = _order(self._groups_S, random.Random(f"{self.seed}/{epoch}"), chunk)
            self._epoch = epoch
        places = self._order_S[nth * size : (nth + 1) * size].tolist()
        chosen = [(int(self._groups_S[place]), place, self.states[place]) for place in places]
        first: dict[int, int] = {}
        for group, _, _ in chosen:
            first.setdefault(group, len(first))
        chosen.sort(key=lambda one: (first[one[0]], one[2].turn, one[1]))
        return [state for _, _, state in chosen]


def _groups(states: Sequence[State]) -> NDArray[np.int64]:
    """The number of each state's trajectory, shape (S,), in order of first appearance."""
    numbers: dict[str, int] = {}
    keys = (state.id if state.trajectory is None else state.trajectory for state in states)
    return np.fromiter((numbers.setdefault(key, len(numbers)) for key in keys), np.int64, len(states))


def _order(groups_S: NDArray[np.int64], rng: random.Random, chunk: int) -> NDArray[np.int64]:
    """Returns a random order of the states, shape (S,). The states of each trajectory are split at random into pieces
    of at most ``chunk`` states, and all pieces are shuffled.
    """
    by_group_S = np.argsort(groups_S, kind="stable")
    ends = np.cumsum(np.bincount(groups_S)).tolist()
    begins = array("q")
    begin = 0
    for end in ends:
        places = by_group_S[begin:end].tolist()
        rng.shuffle(places)
        by_group_S[begin:end] = places
        begins.extend(range(begin, end, chunk))
        begin = end
    lengths = np.diff(np.append(np.frombuffer(begins, np.int64), len(groups_S)))
    pieces = array("q", range(len(begins)))
    rng.shuffle(pieces)
    shuffled = np.frombuffer(pieces, np.int64)
    lengths = lengths[shuffled]
    offsets = np.repeat(np.frombuffer(begins, np.int64)[shuffled] - np.cumsum(lengths) + lengths, lengths)
    return by_group_S[offsets + np.arange(len(groups_S))]
