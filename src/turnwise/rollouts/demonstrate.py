"""Turns a demonstration into a rollout tree with one path, on which SFT trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.types import RolloutTree, State, Turn


def demonstration(turns: Sequence[State]) -> RolloutTree:
    """Returns the expert's path through the states of one trajectory, in order.

    Each demonstrated turn occurs once, and the tokens between two turns are the observation. Each state must continue
    the one before it, as those of :func:`paths` do.
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


def paths(states: Sequence[State]) -> Mapping[str, list[State]]:
    """Returns lists of states of one trajectory that continue one another, by the id of their first state."""
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
