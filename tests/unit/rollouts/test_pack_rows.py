"""Which rows paths go to, and to which samples their tokens count."""

from __future__ import annotations

import pytest

from turnwise.rollouts.pack import pack
from turnwise.types import Credit, RolloutTree, State, Task, Turn

TASK = Task("toy", "0", "train")


@pytest.mark.parametrize(("state", "rows"), [(1, [20]), (12, [20]), (16, [24]), (20, [40]), (64, [84, 84])])
def test_a_long_state_is_not_repeated_for_every_action(state: int, rows: list[int]) -> None:
    """Rows of 20. Beside 16 tokens stood 4 actions of one token and now up to 16, beside 20 or 64 one and now 20."""
    actions = {1: 19, 12: 8, 16: 8, 20: 20, 64: 40}[state]
    turns = [Turn(-1, [100 + i], [-1.0]) for i in range(actions)]
    tree = RolloutTree(State("s", TASK, tuple(range(state))), turns)
    update = pack([tree], [Credit([1.0] * actions, [1.0] * actions)], row_tokens=20, batch_tokens=20)
    assert sorted(int(batch.ids_BS.shape[1]) for batch in update.batches) == rows
    assert update.counts.turns == actions


@pytest.mark.parametrize("row_tokens", [2048, 12])
def test_a_credit_may_name_the_samples(row_tokens: int) -> None:
    """Turn 0 is shared by 1 and 2. By default it counts with its first leaf; named, it is a sample of its own."""
    tree = RolloutTree(State("s", TASK, (1, 2)))
    tree.turns = [Turn(-1, [3], [-1.0], observation_ids=[4]), Turn(0, [5, 6], [-2.0] * 2), Turn(0, [7], [-3.0])]
    credit = Credit([1.0] * 3, [1.0] * 3)

    def samples(credit: Credit) -> list[set[int]]:
        update = pack([tree], [credit], row_tokens=row_tokens)
        items = [(t, s) for b in update.batches for t, s in zip(b.items.turn_K.tolist(), b.items.sequence_K.tolist())]
        assert update.counts.sequences == len({s for _, s in items})
        return [{t for t, s in items if s == sample} for sample in sorted({s for _, s in items})]

    assert samples(credit) == [{0, 1}, {2}]
    credit.sample = [0, 1, 2]
    assert samples(credit) == [{0}, {1}, {2}]
