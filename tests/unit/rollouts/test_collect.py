"""A rule that compares the trees of an update: what it is shown, what it remembers, and how a batch fills up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from turnwise.methods.awpo import PEAK, Awpo
from turnwise.methods.credit import GroupAdvantage
from turnwise.rollouts.collect import REFILLS, Collector, updates_of
from turnwise.types import Rewards, RolloutTree, State, Task, Turn

# rewards of a state's two rollouts; "same" teaches nothing
PAYS = {"same": (2.0, 2.0), "easy": (1.0, 2.0), "hard": (0.0, 1.0), "other": (0.0, 0.5)}


def state(name: str) -> State:
    return State(name, Task("toy", name, "train"), (1, 2, 3))


def play(states: Sequence[State], key: object) -> list[RolloutTree]:
    return [RolloutTree(s, [Turn(-1, [4], [-1.0]), Turn(-1, [5], [-1.0])]) for s in states]


def reward(tree: RolloutTree) -> Rewards:
    paid = list(PAYS[tree.state.id])
    return {"outcome": paid, "reasoning": [0.5 * p for p in paid], "total": paid}


def collector(first: Sequence[str], further: Sequence[str], rule: object, refills: int = 4) -> Collector:
    def select(number: int) -> list[State]:
        return [state(name) for name in (further if number >= REFILLS else first)]

    return Collector(select, play, reward, rule, max_refills=refills)  # type: ignore[arg-type]


def test_a_batch_rule_sees_the_update_and_its_memory_comes_back() -> None:
    rule = Awpo(eps=0.0, difficulty=False)
    first = collector(["easy", "hard"], [], rule).collect(0)
    assert first.memory == {PEAK: 1.5}
    # s_mix = 1.5 s_out, so rho = 0.6; "easy" is at the peak
    assert first.metrics["mix_weight"] == pytest.approx(0.3)
    assert first.credits[0].clip_low == first.credits[1].clip_low == pytest.approx([0.18 + 0.7 * 0.02] * 2)
    second = collector(["hard"], [], rule).collect(1, first.memory)
    assert second.memory == first.memory
    assert second.metrics["mix_weight"] == pytest.approx(0.6)
    assert collector(["hard"], [], rule).collect(1).metrics["mix_weight"] == 0  # without memory it is its own peak


@pytest.mark.parametrize(("steps", "parts"), [(1, [4]), (2, [2, 2]), (3, [1, 1, 2]), (4, [1, 1, 1, 1])])
def test_each_step_trains_on_its_part_of_the_trees_with_the_credit_of_the_whole(steps: int, parts: list[int]) -> None:
    experience = collector(["easy", "hard", "other", "same"], [], GroupAdvantage(zero_variance="keep")).collect(0)
    updates = updates_of(experience, steps)
    assert [update.counts.sequences for update in updates] == [2 * trees for trees in parts]
    taught = [float(x) for update in updates for packed in update.batches for x in packed.items.advantage_K]
    (undivided,) = updates_of(experience)
    assert sorted(taught) == sorted(float(x) for packed in undivided.batches for x in packed.items.advantage_K)
    last = [float(x) for packed in updates[-1].batches for x in packed.items.advantage_K]
    assert taught.count(0.0) == last.count(0.0) == 2  # "same" was drawn last


def test_a_refilled_batch_is_credited_as_one() -> None:
    rule = Awpo(eps=0.0, difficulty=False, zero_variance="refill")
    found = collector(["same", "hard"], ["hard", "other"], rule).collect(0)
    assert [tree.state.id for tree in found.trees] == ["hard", "other"]
    assert [(tree.state.id, set(rewards["total"])) for tree, rewards in found.replaced] == [("same", {2.0})]
    assert found.memory == {PEAK: 2.0}  # what was thrown away was seen all the same
    assert found.metrics["mix_weight"] == pytest.approx(0.6)  # of both that are left: neither is at the peak
    assert found.credits[0].clip_low == found.credits[1].clip_low
    assert len(found.rewards) == len(found.credits) == 2


@pytest.mark.parametrize("seed", range(8))
def test_a_refill_never_plays_a_state_that_is_already_kept(seed: int) -> None:
    """Otherwise one state would have two groups, and count twice in the loss."""
    played: list[tuple[object, str]] = []

    def noted(states: Sequence[State], key: object) -> list[RolloutTree]:
        played.extend((key, state.id) for state in states)
        return play(states, key)

    names = ["easy", "same", "hard"]
    made = collector(names, ["easy", "hard", "other"], GroupAdvantage(zero_variance="refill"))
    found = replace(made, play=noted, seed=seed).collect(5)
    assert [tree.state.id for tree in found.trees] == ["easy", "hard", "other"]
    assert played == [((5, 0), name) for name in names] + [((5, 1), "other")]  # with a key, and so draws, of its own
    played.clear()
    made = collector(["easy", "same"], ["easy"], GroupAdvantage(zero_variance="refill"), refills=3)
    found = replace(made, play=noted, seed=seed).collect(0)
    assert [tree.state.id for tree in found.trees] == ["easy"]
    assert played == [((0, 0), "easy"), ((0, 0), "same")]  # nothing else is left to draw


def test_refills_are_bounded_and_a_tree_rule_needs_no_memory() -> None:
    rule = GroupAdvantage(zero_variance="refill")
    found = collector(["same", "hard"], ["same"], rule, refills=3).collect(0, {"kept": 1.0})
    assert [tree.state.id for tree in found.trees] == ["hard"]
    assert len(found.replaced) == 4  # the first, and one a refill
    assert found.memory == {"kept": 1.0} and found.metrics == {}
    kept = collector(["same", "hard"], ["other"], GroupAdvantage(zero_variance="drop")).collect(0)
    assert [tree.state.id for tree in kept.trees] == ["same", "hard"] and not kept.replaced


def test_a_refill_draws_all_turns_of_a_trajectory_equally_often() -> None:
    """A batch lists the turns of a trajectory in their order, so its first state is always the first turn."""
    turns = [State(str(turn), Task("toy", "t", "train"), (1, 2, 3), trajectory="t", turn=turn) for turn in range(4)]
    drawn: list[int] = []

    def play_and_count(states: Sequence[State], key: object) -> list[RolloutTree]:
        drawn.extend(state.turn for state in states if key != (0, 0))
        return play(states, key)

    def same(tree: RolloutTree) -> Rewards:
        return {"total": [1.0, 1.0]}

    def select(number: int) -> list[State]:
        return turns if number >= REFILLS else [state("same")]

    rule = GroupAdvantage(zero_variance="refill")
    Collector(select, play_and_count, same, rule, max_refills=400).collect(0)
    assert len(drawn) == 400
    # each count is binomial with mean 100 and standard deviation 8.7; taking the first state gives 400, 0, 0, 0
    assert all(65 < drawn.count(turn) < 135 for turn in range(4))
    Collector(select, play_and_count, same, rule, max_refills=20).collect(0)
    assert drawn[400:] == drawn[:20]  # as after a resume
    Collector(select, play_and_count, same, rule, max_refills=20, seed=1).collect(0)
    assert drawn[420:] != drawn[:20]  # runs with other seeds draw other turns
