"""Converts a demonstration into a rollout tree with a single path. SFT trains on such trees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.types import RolloutTree, State, Turn


def demonstration(turns: Sequence[State]) -> RolloutTree:
    """Returns a tree whose only path is the expert's path through the given states of one trajectory.

    Each demonstrated turn occurs once. The tokens between two demonstrated turns are the observation of the first one.
    Each state must continue the state before it, as the states in a list of :func:`demonstrated_paths` do.

    Raises:
        ValueError: a state does not continue the state before it.
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
    """Groups the states of demonstrations into paths: lists in which each state continues the one before it.

    Such states are consecutive and belong to the same trajectory. The key of each list is the id of its first state.
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
