"""Converts every assistant turn of an expert trajectory into a state in which the policy can act."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from turnwise.algo.states.state_rule import Profile
from turnwise.types import State, Task, Trajectory


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
