"""Where the policy acts: the candidate states (expert turns, or the starts of tasks), the rule that chooses among
them by profiles, and the batches of states of each iteration.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from turnwise.errors import InputError
from turnwise.types import State, Task, Trajectory

STD_TOLERANCE = 1e-6  # rewards with at most this std count as equal, because float scores differ in their last bits


@dataclass(frozen=True, slots=True)
class Profile:
    """The rewards of K actions that one policy sampled at one state, once by the functional and once by the strict
    rule. The functional rule accepts every action that is equivalent to the demonstrated action. The strict rule
    accepts only exactly the demonstrated action. The policy is the base policy, or the current policy if states are
    profiled again.

    ``strict`` is empty if the rewards were read from a file that gives only a pass rate. A ValueError is raised if
    there is no sample, or if the two rules have different numbers of rewards.
    """

    functional: tuple[float, ...]
    strict: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.functional:
            raise ValueError("a profile needs at least one sample")
        if self.strict and len(self.functional) != len(self.strict):
            raise ValueError(
                "functional and strict must both have one reward for each sample, "
                f"got {len(self.functional)} and {len(self.strict)}"
            )

    @property
    def mean(self) -> float:
        """Mean functional reward (PivotRL, arXiv:2603.21383, Eq. 4), as ``variance`` its population variance."""
        return sum(self.functional) / len(self.functional)

    @property
    def variance(self) -> float:
        mean = self.mean
        return sum((reward - mean) ** 2 for reward in self.functional) / len(self.functional)

    @property
    def mixed(self) -> bool:
        return self.variance > STD_TOLERANCE**2


class StateRule(Protocol):
    """Chooses the states to train on. The caller supplies the candidate states and, if ``k`` > 0, their profiles."""

    @property
    def source(self) -> Literal["expert", "tasks"]:
        """Assistant turns of expert trajectories, or the first prompts of tasks."""
        ...

    @property
    def k(self) -> int:
        """Actions to sample at each candidate before training; 0: no profile."""
        ...

    @property
    def reprofile(self) -> Refresh | None:
        """Decides when states are profiled and chosen again; None: states are chosen once."""
        ...

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> Sequence[State]:
        """In the order of ``states``. If ``k`` is 0, ``profiles`` (by state id) is not read."""
        ...


@dataclass(frozen=True, slots=True)
class Refresh:
    """Decides when to profile the candidate states again: when the fraction of mixed groups (whose rollouts have different
    rewards) over the newest ``window`` iterations is below ``share`` times that over the first ``window`` iterations
    after the previous profile. Between two profiles are at least ``gap`` iterations; ``most`` counts the first profile,
    which is that of the base policy, too.
    """

    share: float
    window: int = 3
    gap: int = 6
    most: int = 4

    def decay(self, history: Sequence[float]) -> float | None:
        """Returns the mean of the last ``window`` values divided by that of the first ``window``, or None if these values
        overlap or the first mean is 0. ``history`` holds the fraction of mixed groups at each iteration since the last
        profile.
        """
        if len(history) < 2 * self.window:
            return None
        first, last = sum(history[: self.window]), sum(history[-self.window :])
        return last / first if first > 0 else None

    def due(self, history: Sequence[float], profiles: int) -> bool:
        """``history`` as for :meth:`decay`; ``profiles`` is the number of profiles so far."""
        left = self.decay(history)
        return profiles < self.most and len(history) >= self.gap and left is not None and left < self.share


class SpineLike(Protocol):
    """The tokens of a trajectory. For each pair (start, stop) in ``turns``, ``ids[:start]`` is the history before the
    expert's turn and ``ids[start:stop]`` is the expert's action.
    """

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def turns(self) -> Sequence[tuple[int, int]]: ...


def expert_turns(
    trajectory: Trajectory, spines: Sequence[SpineLike], decode: Callable[[Sequence[int]], str]
) -> list[State]:
    """Returns a state for each assistant turn of one trajectory, in order. Each state holds the history s_t and the
    expert's action a*_t (PivotRL, arXiv:2603.21383, Eq. 3). The state of turn t has the id ``{trajectory.id}#t{t}``.

    A trajectory without a task gets a new task that has no environment and whose data are the tools of the dialogue.
    Actions in its states can be imitated or compared with the demonstrated action, but they cannot be executed.

    Args:
        spines: the tokens of the trajectory. There is more than one spine if the chat template shortens the history
            that later turns see.
        decode: a function that turns the token ids of an action into the text that the environment reads.
    """
    tools = {"tools": list(trajectory.tools)} if trajectory.tools else {}
    task = trajectory.task or Task("", trajectory.id, "train", tools)
    states: list[State] = []
    actions: tuple[str, ...] = ()
    for spine in spines:
        for start, stop in spine.turns:
            expert_ids = tuple(spine.ids[start:stop])
            expert = decode(expert_ids)
            turn = len(states)
            states.append(
                State(
                    id=f"{trajectory.id}#t{turn}",
                    task=task,
                    ids=tuple(spine.ids[:start]),
                    actions=actions,
                    expert=expert,
                    expert_ids=expert_ids,
                    trajectory=trajectory.id,
                    turn=turn,
                    pivot=trajectory.pivot,
                )
            )
            actions = (*actions, expert)
    return states


@dataclass(frozen=True, slots=True)
class ExpertTurns:
    """Selects every expert turn for training, without a filter. ``k`` is 0: no actions are sampled before training."""

    source: ClassVar[Literal["expert"]] = "expert"
    k: ClassVar[int] = 0
    reprofile: ClassVar[None] = None

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> Sequence[State]:
        return states


def task_starts(tasks: Iterable[Task], opening: Callable[[Task], Sequence[int]]) -> list[State]:
    """Returns one state for each task: the state before the first action. A task that occurs twice gives two states
    with the same id, which must not be in one batch. ``opening`` returns the token ids of a task's prompt, after which
    the policy's first action begins.
    """
    return [State(id=f"{task.env}/{task.id}#t0", task=task, ids=tuple(opening(task))) for task in tasks]


@dataclass(frozen=True, slots=True)
class TaskStarts:
    """Selects the first prompts of the first ``count`` training tasks as the states to train on."""

    source: ClassVar[Literal["tasks"]] = "tasks"
    k: ClassVar[int] = 0
    reprofile: ClassVar[None] = None

    count: Annotated[int, Interval(ge=1, le=10**6)] = 300

    def select(self, states: Sequence[State], profiles: Mapping[str, Profile]) -> list[State]:
        return list(states[: self.count])


@dataclass(slots=True)
class Batches:
    """Returns the states of an iteration when it is called with the number of that iteration.

    Iterations go through the states in epochs, and within an epoch no state occurs twice. An epoch has as many full
    batches as the number of states allows. The remaining states are left out of this epoch. They differ from epoch to
    epoch. If there are fewer states than a batch needs, one batch holds all of them. States of one trajectory are
    placed next to each other in the order of their turns, because they share tokens.

    A resumed run needs no stored position. The order of the states in the last epoch is cached.
    """

    states: Sequence[State]  # the same, in the same order, whenever the run is started or resumed
    seed: int | str  # of the random order; a different set of states needs a different seed
    states_per_batch: int
    # Approximate; None: whole trajectories. With fewer, more tokens are shared; with more, the states are more diverse.
    trajectories_per_batch: int | None = None
    first: int = 0  # the iteration with which the first epoch begins
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
