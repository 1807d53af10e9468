"""Which states an iteration plays: a pure function of seed and iteration, so a resumed run needs no memory of it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from turnwise.errors import InputError
from turnwise.types import State


def batch(
    states: Sequence[State],
    iteration: int,
    seed: int,
    states_per_batch: int,
    trajectories_per_batch: int | None = None,
) -> list[State]:
    """The states of one iteration.

    Iterations walk through epochs; within an epoch no state comes twice. An epoch has as many full batches as the
    states give, the rest waits (another rest each epoch); fewer states than a batch make one batch of all. States of
    one trajectory come together, in the order of their turns, because they share their spine.

    Args:
        states: the same list, in the same order, at every call of a run.
        iteration: from 0.
        seed: of the order.
        states_per_batch: most states of a batch.
        trajectories_per_batch: spread a batch over about this many trajectories; whole trajectories unless given. Fewer
            share more tokens, more differ more.

    Raises:
        InputError: there is no state.
        ValueError: a number is out of range.
    """
    if not states:
        raise InputError("no state to train on: loosen states.keep or states.lambda_diff, or give more trajectories")
    if iteration < 0 or states_per_batch < 1:
        raise ValueError(f"iteration {iteration} must be at least 0 and states_per_batch {states_per_batch} at least 1")
    if trajectories_per_batch is not None and not 1 <= trajectories_per_batch <= states_per_batch:
        raise ValueError(
            f"trajectories_per_batch must be from 1 to states_per_batch ({states_per_batch}), "
            f"got {trajectories_per_batch}"
        )
    batches = max(1, len(states) // states_per_batch)
    epoch, nth = divmod(iteration, batches)
    chunk = states_per_batch if trajectories_per_batch is None else -(-states_per_batch // trajectories_per_batch)
    order = _order(states, random.Random(f"{seed}/{epoch}"), chunk)
    chosen = order[nth * states_per_batch : (nth + 1) * states_per_batch]
    first: dict[str, int] = {}
    for place in chosen:
        first.setdefault(_key(states[place]), len(first))
    chosen.sort(key=lambda place: (first[_key(states[place])], states[place].turn, place))
    return [states[place] for place in chosen]


def _key(state: State) -> str:
    return state.id if state.trajectory is None else state.trajectory


def _order(states: Sequence[State], rng: random.Random, chunk: int) -> list[int]:
    """Places of the states: trajectories in random pieces of at most ``chunk``, pieces in random order."""
    trajectories: dict[str, list[int]] = {}
    for place, state in enumerate(states):
        trajectories.setdefault(_key(state), []).append(place)
    pieces = []
    for places in trajectories.values():
        rng.shuffle(places)
        pieces += [places[i : i + chunk] for i in range(0, len(places), chunk)]
    rng.shuffle(pieces)
    return [place for piece in pieces for place in piece]
