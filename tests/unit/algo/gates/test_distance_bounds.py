"""What is certain of a group's distance before its slowest rollouts have come to the gate, against all that they may do."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

from turnwise.algo.gates.rules import Divergence, Taken, certain, distance_bounds
from turnwise.types import RolloutTree, State, Task, Turn

STEP = 5  # 1 - 4/5 is not 1/5 in floating point
known = st.builds(Taken, st.lists(st.sampled_from("ab"), max_size=STEP).map(tuple), st.booleans())


def endings(taken: Taken) -> list[tuple[str, ...]]:
    """All that a rollout's first actions may still become; another letter than those known is among them."""
    left = STEP - len(taken.actions) if taken.more else 0
    return [(*taken.actions, *more) for count in range(left + 1) for more in itertools.product("abc", repeat=count)]


@given(known, known)
def test_no_ending_leaves_the_bounds(one: Taken, other: Taken) -> None:
    low, high = distance_bounds(one, other, STEP)
    found = [Levenshtein.normalized_distance(a, b) for a in endings(one)[:200] for b in endings(other)[-200:]]
    assert low <= min(found) and max(found) <= high  # exactly: a gate may decide at the bound itself


def grown(rollouts: list[str], step: int) -> tuple[RolloutTree, list[int]]:
    """A tree of these rollouts, an action a letter, and the last turns of those that have not taken ``step``."""
    tree = RolloutTree(State("s", Task("world", "t", "train"), ()), version=0)
    behind = []
    for actions in rollouts:
        parent = -1
        for action in actions:
            tree.turns.append(Turn(parent, [0], [0.0], action, observation_ids=[1]))
            parent = len(tree.turns) - 1
        if len(actions) < step:
            behind.append(parent)
    return tree, behind


def test_what_is_certain_by_hand() -> None:
    # Six pairs: those of abcd with abcd and with abcd are 0, each with the one that has taken abc at most 1/4: 3/24 = 0.125.
    tree, behind = grown(["abcd", "abcd", "abcd", "abc"], 4)
    assert Divergence(4, 0.12).early(tree, 4, behind) is None and not tree.looks
    assert Divergence(4, 0.126).early(tree, 4, behind) is True
    assert [(look.step, look.stop, list(look.values.values())) for look in tree.looks] == [(4, True, [0.125])]
    # One pair of three is at 1, and the third rollout has not begun: at least 1/3.
    tree, behind = grown(["aaaa", "bbbb", ""], 4)
    assert behind == [-1]
    assert Divergence(4, 0.33).early(tree, 4, behind) is False
    assert Divergence(4, 0.34).early(tree, 4, behind) is None and not tree.looks
    # Seven pairs of 28 may still be at 1/5 each: at most 0.05, which is not below 0.05. If the slowest rollout ends so,
    # the gate keeps the group.
    tree, behind = grown([*["abcde"] * 7, "abcd"], 5)
    assert Divergence(5, 0.05).early(tree, 5, behind) is None
    assert not Divergence(5, 0.05)(grown([*["abcde"] * 7, "abcdx"], 5)[0], 5)
    # A single rollout that has come so far is no group yet: the others may fail.
    tree, behind = grown(["abcd", "abc"], 4)
    assert certain(tree, 4, behind, 1.0) is None


@given(st.lists(st.text("ab", min_size=3, max_size=3), min_size=2, max_size=5), st.data())
def test_a_decision_that_is_certain_is_the_decision(rollouts: list[str], data: st.DataObject) -> None:
    threshold = data.draw(st.floats(0.01, 0.99))
    taken = [rollout[: data.draw(st.integers(0, 3))] if place else rollout for place, rollout in enumerate(rollouts)]
    gate = Divergence(3, threshold)
    tree, behind = grown(taken, 3)
    early, whole = gate.early(tree, 3, behind), gate(grown(rollouts, 3)[0], 3)
    assert early is None or early == whole
