"""Sequences of states that are built on demand, so that a run can have more states than fit into memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from turnwise.types import State


class LazyStates(Sequence[State]):
    """A sequence whose states are built when they are indexed. Ids, groups and lengths of all states are known without
    building the states.
    """

    @abstractmethod
    def at(self, place: int) -> State:
        """Returns the state with index ``place``, which is at least 0."""

    @abstractmethod
    def ids(self) -> Iterator[str]:
        """Returns the ids of all states, in order."""

    @abstractmethod
    def place(self, state_id: str) -> int | None:
        """Returns the index of the state whose id is ``state_id``, or None if there is no such state."""

    @abstractmethod
    def groups(self) -> NDArray[np.int64]:
        """Returns a group number for each state, shape (S,). States of one trajectory have the same number."""

    @abstractmethod
    def lengths(self) -> NDArray[np.uint32]:
        """Returns the number of tokens of each state's history, shape (S,)."""

    def ends(self) -> NDArray[np.uint32]:
        """Returns the number of tokens of each state's history and demonstrated action together, shape (S,)."""
        return np.fromiter((len(state.ids) + len(state.expert_ids) for state in self), np.uint32, len(self))

    @overload
    def __getitem__(self, place: int) -> State: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[State]: ...
    def __getitem__(self, place: int | slice) -> State | Sequence[State]:
        if isinstance(place, slice):
            return [self.at(i) for i in range(*place.indices(len(self)))]
        return self.at(range(len(self))[place])


class Chosen(LazyStates):
    """The states of a lazy sequence with the ascending indices ``places_S``. The subset takes 8 bytes per state."""

    def __init__(self, states: LazyStates, places_S: NDArray[np.int64]) -> None:
        self.states, self.places_S = states, places_S

    def __len__(self) -> int:
        return len(self.places_S)

    def at(self, place: int) -> State:
        return self.states.at(int(self.places_S[place]))

    def ids(self) -> Iterator[str]:
        mask = np.zeros(len(self.states), bool)
        mask[self.places_S] = True
        return (name for name, wanted in zip(self.states.ids(), mask) if wanted)

    def place(self, state_id: str) -> int | None:
        found = self.states.place(state_id)
        if found is None:
            return None
        place = int(np.searchsorted(self.places_S, found))
        return place if place < len(self) and self.places_S[place] == found else None

    def groups(self) -> NDArray[np.int64]:
        return self.states.groups()[self.places_S]

    def lengths(self) -> NDArray[np.uint32]:
        return self.states.lengths()[self.places_S]

    def ends(self) -> NDArray[np.uint32]:
        return self.states.ends()[self.places_S]


def ids_of(states: Sequence[State]) -> Iterable[str]:
    """Returns the ids of all states of a sequence, lazy or not, in order."""
    return states.ids() if isinstance(states, LazyStates) else (state.id for state in states)


def lengths_of(states: Sequence[State]) -> NDArray[np.uint32]:
    """Returns the number of tokens of each state's history, shape (S,)."""
    return states.lengths() if isinstance(states, LazyStates) else np.array([len(s.ids) for s in states], np.uint32)


def chosen(states: Sequence[State], places: Iterable[int]) -> Sequence[State]:
    """Returns the states with the ascending indices ``places``. The result is lazy if ``states`` is lazy."""
    if isinstance(states, LazyStates):
        return Chosen(states, np.fromiter(places, np.int64))
    return [states[place] for place in places]


def finder(states: Sequence[State]) -> Callable[[str], int | None]:
    """Returns a function that maps a state's id to the state's index in ``states``, or to None if the id is unknown."""
    if isinstance(states, LazyStates):
        return states.place
    return {state.id: place for place, state in enumerate(states)}.get


def places_of(states: Sequence[State], some: Sequence[State]) -> NDArray[np.int64]:
    """Returns the index in ``states`` of each state of ``some``, shape (S,). An unknown state raises a KeyError."""
    find = finder(states)

    def place(name: str) -> int:
        if (found := find(name)) is None:
            raise KeyError(name)
        return found

    return np.fromiter(map(place, ids_of(some)), np.int64, len(some))
