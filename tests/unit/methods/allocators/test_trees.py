"""TRACE, TreePO and PCL on trees made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.methods.allocate import Pcl, TreePO
from turnwise.methods.trace import Trace
from turnwise.types import Rewards, RolloutTree, State, Task, Turn

# -- trees -------------------------------------------------------------------------------------------------------------

WON = {"a": [1.0, 0.0], "b": [1.0, 1.0, 0.0]}


def state(name: str) -> State:
    return State(id=name, task=Task("toy", name, "train"), ids=(1, 2))


def tree(name: str, *parents: int) -> RolloutTree:
    return RolloutTree(state(name), [Turn(parent, [1], [-1.0]) for parent in parents])


def paid(tree: RolloutTree) -> Rewards:
    return {"total": WON[tree.state.id]}


def told(*values: float):
    """The same values for every tree."""

    def value(trees: Sequence[RolloutTree]) -> list[list[float]]:
        return [list(values[: 1 + len(tree.turns)]) for tree in trees]

    return value


# two rollouts in lockstep, of three turns and of two: 0-2-4 and 1-3; the leaves are 3 (won) and 4 (lost)
TWO = tree("a", -1, -1, 0, 1, 2)


def test_roots_are_spent_where_outcomes_are_mixed() -> None:
    def value(trees: Sequence[RolloutTree]) -> list[list[float]]:
        return [[{"a": 0.0, "b": 0.5, "c": 0.9}[tree.state.id]] for tree in trees]

    allocator = Trace(value, paid, budget=6)
    # b's gains are 1/4, 1/4, 1/4, 1/8, 1/16, 1/32 and c's 0.09 three times: 4 + 2 is worth 0.875 + 0.18
    assert allocator([state("a"), state("b"), state("c")]) == [0, 4, 2]
    assert allocator([]) == []


def test_prefixes_are_branched_where_the_outcome_may_turn() -> None:
    # V after turns 0..4. Of the lost rollout 0-2-4: q = 1 - V = 0.1 and 0.7; of the won one 1-3: q = V = 0.5.
    # Leaves count for nothing, though their numbers say otherwise. First units gain 0.9, 0.3, 0.5; second ones at most 0.25.
    allocator = Trace(told(0.5, 0.9, 0.5, 0.3, 0.0, 1.0), paid, expansion=1)
    assert dict(allocator.expand([TWO])[0]) == {0: 1, 1: 1}
    allocator = Trace(told(0.5, 0.9, 0.5, 0.3, 0.0, 1.0), paid, expansion=2)
    assert dict(allocator.expand([TWO])[0]) == {0: 1, 1: 2, 2: 1}  # 0.9, 0.5, 0.3, then 0.25 at turn 1


def test_trees_asked_about_together_are_answered_as_alone() -> None:
    other = tree("b", -1, -1, -1, 0, 1, 2, 3)  # 0-3-6, 1-4, 2-5
    for allocator in (Trace(told(*[0.5] * 9), paid, seed=3), TreePO(seed=3), Trace(told(), paid, prefix="random")):
        together = allocator.expand([TWO, other])
        assert together == [allocator.expand([TWO])[0], allocator.expand([other])[0]]
        assert [sum(counts.values()) for counts in together] == [4, 6]
        assert set(together[0]) <= {0, 1, 2} and set(together[1]) <= {0, 1, 2, 3}  # never a leaf


def test_a_failed_world_is_no_anchor() -> None:
    broken = tree("a", -1, -1, 0, 1, 2)
    broken.invalid = {4}
    value = told(*[0.5] * 6)
    for allocator in (Trace(value, paid), TreePO(), Trace(value, paid, prefix="random")):
        assert allocator.expand([broken]) == [{1: 2}]
    broken.invalid = {3, 4}
    for allocator in (Trace(value, paid), TreePO()):
        assert allocator.expand([broken]) == [{}]


def test_without_a_prefix_the_continuations_become_rollouts_from_the_root() -> None:
    short = tree("b", -1, -1, -1)
    for allocator in (Trace(told(*[0.5] * 4), paid), TreePO(branches=2)):
        assert allocator.expand([short]) == [{-1: 6}]
    assert Trace(told(), paid, expansion=0).expand([short, TWO]) == [{}, {}]
    assert TreePO(branches=0).expand([short]) == [{}]


def test_treepo_branches_twice_in_every_rollout() -> None:
    deep = tree("b", -1, -1, 0, 1, 2, 3, 4, 5)  # 0-2-4-6 and 1-3-5-7
    found = [TreePO(seed=seed).expand([deep])[0] for seed in range(40)]
    assert all(set(counts.values()) == {1} for counts in found)
    assert all(sum(turn % 2 for turn in counts) == 2 and len(counts) == 4 for counts in found)
    assert set().union(*found) == {0, 1, 2, 3, 4, 5}
    one = tree("a", -1, -1, 0)  # one rollout has a single turn to branch at, the other none
    assert TreePO(branches=2).expand([one]) == [{0: 4}]
    assert TreePO(roots=3)([state("a"), state("b")]) == [3, 3]


def test_equally_good_turns_are_not_taken_in_the_order_of_the_rollouts() -> None:
    deep = tree("a", -1, -1, 0, 1, 2, 3, 4, 5, 6, 7)
    found = {tuple(sorted(Trace(told(*[0.5] * 11), paid, 2, 1, seed=s).expand([deep])[0])) for s in range(20)}
    assert len(found) > 5


def test_pcl_plays_the_prompts_nearest_one_half() -> None:
    def value(trees: Sequence[RolloutTree]) -> list[list[float]]:
        return [[{"a": 0.1, "b": 0.7, "c": 0.4}[tree.state.id]] for tree in trees]

    allocator = Pcl(value, prompts=2, group_size=8)
    assert allocator([state(name) for name in "abc"]) == [0, 8, 8]
    assert allocator.expand([TWO]) == [{}]
