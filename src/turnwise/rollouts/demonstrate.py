"""Converts a demonstration into a rollout tree with a single path. SFT trains on such trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.types import RolloutTree, State, Turn


def demonstration(turns: Sequence[State]) -> RolloutTree:
    """Returns a tree whose only path consists of the demonstrated turns at ``turns``, a list of
    :func:`demonstrated_paths`. The tokens between two demonstrated turns are the observation of the earlier turn.

    Raises:
        ValueError: the history of a state does not begin with the history and demonstrated turn of the state before.
    """
    root = turns[0]
    tree = RolloutTree(root)
    seen = list(root.ids)
    for i, state in enumerate(turns):
        assert state.expert is not None
        action = list(state.expert_ids)
        following = list(turns[i + 1].ids) if i + 1 < len(turns) else []
        observation = following[len(seen) + len(action) :]
        tree.turns.append(Turn(i - 1, action, [0.0] * len(action), state.expert, observation))
        seen += action + observation
        if following and seen != following:
            raise ValueError(f"state {turns[i + 1].id!r} does not continue {state.id!r}")
    return tree


def demonstrated_paths(states: Sequence[State]) -> Mapping[str, list[State]]:
    """Groups the states of demonstrations into paths. Returns id of the first state of a path -> path.

    A path is a list of consecutive states of one trajectory. The history of each further state begins with the history
    and the demonstrated turn of the state before.
    """
    found: dict[str, list[State]] = {}
    last: State | None = None
    head = ""
    for state in states:
        continues = (
            last is not None
            and state.trajectory == last.trajectory
            and state.ids[: len(last.ids) + len(last.expert_ids)] == last.ids + last.expert_ids
        )
        if not continues:
            head = state.id
        found.setdefault(head, []).append(state)
        last = state
    return found
