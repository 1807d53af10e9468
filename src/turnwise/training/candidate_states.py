"""Provides the candidate states of a run with expert trajectories: the turns of the trajectories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from turnwise.algo.states.expert_turns import expert_turns
from turnwise.algo.states.lazy import LazyStates, chosen, lengths_of
from turnwise.config.settings import RolloutSettings
from turnwise.data.demonstrations import Demonstrations
from turnwise.data.steps import TurnInContext, steps_of
from turnwise.errors import InputError
from turnwise.training.held_out_dialogues import HeldOut, called_tools
from turnwise.training.user_file import UserFile
from turnwise.types import State

_NEAR = 64  # number of trajectories whose states are cached, because neighbouring states are requested together


class Turns(LazyStates):
    """A sequence of states, one for every assistant turn of every trajectory (PivotRL Eq. 3). The states of a
    trajectory are built together when one of them is needed.
    """

    def __init__(self, demonstrations: Demonstrations) -> None:
        self.demonstrations = demonstrations
        self._near = lru_cache(maxsize=_NEAR)(self._of)

    def _of(self, number: int) -> list[State]:
        trajectory, spines = self.demonstrations[number]
        return expert_turns(trajectory, spines, self.demonstrations.chat.decode)

    def __len__(self) -> int:
        return self.demonstrations.turns

    def at(self, place: int) -> State:
        number = self.demonstrations.of_turn(place)
        return self._near(number)[place - self.demonstrations.starts[number]]

    def ids(self) -> Iterator[str]:
        starts = self.demonstrations.starts
        for number, name in enumerate(self.demonstrations.names):
            for turn in range(starts[number + 1] - starts[number]):
                yield f"{name}#t{turn}"

    def place(self, state_id: str) -> int | None:
        name, _, turn = state_id.rpartition("#t")
        number = self.demonstrations.number(name)
        if number is None or not turn.isdecimal():
            return None
        begin, end = self.demonstrations.starts[number : number + 2]
        return begin + int(turn) if int(turn) < end - begin else None

    def of(self, numbers: Iterable[int]) -> Sequence[State]:
        """Returns the states of the trajectories ``numbers``."""
        starts, wanted = self.demonstrations.starts, sorted(numbers)
        if len(wanted) == len(self.demonstrations):
            return self
        return chosen(self, (place for number in wanted for place in range(starts[number], starts[number + 1])))

    def groups(self) -> NDArray[np.int64]:
        starts = np.array(self.demonstrations.starts, np.int64)
        return np.repeat(np.arange(len(starts) - 1), np.diff(starts))

    def lengths(self) -> NDArray[np.uint32]:
        return np.array(self.demonstrations.histories, np.uint32)

    def ends(self) -> NDArray[np.uint32]:
        return np.array(self.demonstrations.ends, np.uint32)


class Steps(Mapping[str, TurnInContext]):
    """A mapping from state id to the demonstrated turn with its context, which a judge reads."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._near = lru_cache(maxsize=_NEAR)(self._of)

    def _of(self, number: int) -> list[TurnInContext]:
        return steps_of(self.turns.demonstrations[number].trajectory)

    def __getitem__(self, state_id: str) -> TurnInContext:
        place = self.turns.place(state_id)
        if place is None:
            raise KeyError(state_id)
        number = self.turns.demonstrations.of_turn(place)
        return self._near(number)[place - self.turns.demonstrations.starts[number]]

    def __iter__(self) -> Iterator[str]:
        return self.turns.ids()

    def __len__(self) -> int:
        return len(self.turns)


def hold_out(
    own: UserFile,
    turns: Turns,
    steps: Steps,
    most: int,
    rollout: RolloutSettings,
    sampled: bool,
    log: Callable[[str], None],
) -> tuple[Sequence[State], HeldOut | None]:
    """Splits a user's file into the states to train on and the held-out dialogues for evaluation.

    Args:
        turns: the states of all demonstrated turns.
        steps: map from state id to the demonstrated turn.
        most: greatest number of held-out dialogues that are evaluated. Further held-out dialogues are not used at all.
        sampled: whether the run learns from sampled replies.

    Raises:
        InputError: the run learns from sampled replies, and rollouts may have more than one turn.
    """
    if sampled and rollout.turns != 1:
        raise InputError(
            f"rollout.turns={'null' if rollout.turns is None else rollout.turns}: {own.dialogues} trajectories of "
            f"{own.data.file} are dialogues without an environment. No environment answers "
            "the policy's reply, so a rollout has one turn: set rollout.turns=1"
        )
    numbers = own.held_out()
    kept = turns.of(set(range(len(turns.demonstrations))).difference(numbers))
    for line in own.lines():
        log(line)
    if not numbers:
        log(f"no dialogue is held out (data.held_out={own.data.held_out:g}), so the run is not evaluated on dialogues")
        return kept, None
    states = list(playable(turns.of(numbers[:most]), rollout, log))
    measured = {state.trajectory for state in states}
    log(
        f"{len(numbers)} dialogues are held out; the run is evaluated on {len(states)} replies of {len(measured)} of "
        "them"
    )
    room, lengths = rollout.sampling.max_tokens, [len(state.expert_ids) for state in states]
    if sampled and (long := sum(length > room for length in lengths)):
        log(
            f"{long} of these demonstrated replies are longer than the {room} tokens that the policy may write: raise "
            f"rollout.sampling.max_tokens to {max(lengths)} or more"
        )
    said = json.dumps([[state.id, state.ids, state.expert] for state in states])
    digest = hashlib.sha256(f"{said}{own.dialect}{own.data}".encode()).hexdigest()[:16]
    return kept, HeldOut(states, lambda name: called_tools(steps[name]), digest)


def playable(states: Sequence[State], rollout: RolloutSettings, log: Callable[[str], None]) -> Sequence[State]:
    """Returns the states whose history leaves room for an action within ``rollout.max_length``. Servers would refuse
    the remaining states.

    Raises:
        InputError: no state is left.
    """
    limit = rollout.max_length - rollout.sampling.max_tokens
    what = f"states have a history of more than {limit} tokens (rollout.max_length minus rollout.sampling.max_tokens"
    return _within(limit, states, lengths_of(states), what, log)


def trainable(states: LazyStates, rollout: RolloutSettings, log: Callable[[str], None]) -> Sequence[State]:
    """Returns the states whose demonstrated turn ends within ``rollout.max_length``, for runs without sampling.

    Raises:
        InputError: no state is left.
    """
    what = f"demonstrated turns end after more than {rollout.max_length} tokens (rollout.max_length"
    return _within(rollout.max_length, states, states.ends(), what, log)


def _within(
    limit: int, states: Sequence[State], lengths: NDArray[np.uint32], what: str, log: Callable[[str], None]
) -> Sequence[State]:
    """Returns the states whose entry in ``lengths`` is at most ``limit``. A log line counts the remaining states, which
    ``what`` describes.
    """
    if not len(states) or lengths.max() <= limit:
        return states
    (places,) = np.nonzero(lengths <= limit)
    why = f"{len(states) - len(places)} of {len(states)} {what}; the longest has {lengths.max()})"
    if not len(places):
        raise InputError(f"rollout.max_length: no state is left, because {why}; raise rollout.max_length")
    log(f"left out: {why}")
    return chosen(states, places.tolist())
