from __future__ import annotations

from dataclasses import dataclass

from turnwise.algo.states.expert_turns import ExpertTurns, expert_turns
from turnwise.types import Task, Trajectory


@dataclass
class Ids:
    ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]


TASK = Task("maze", "train/1", "train")
TRAJECTORY = Trajectory("t", (), task=TASK)


def letters(ids):
    return "".join(chr(i) for i in ids[:-1])


def spine(text, *turns):
    return Ids(tuple(map(ord, text)), turns)


def test_every_turn_is_a_state_that_ends_where_the_expert_writes():
    # Opening "??", action "ab.", observation "!!", action "c."
    first, second = expert_turns(TRAJECTORY, [spine("??ab.!!c.", (2, 5), (7, 9))], letters)
    assert (first.id, second.id) == ("t#t0", "t#t1")
    assert first.ids == tuple(map(ord, "??"))
    assert second.ids == tuple(map(ord, "??ab.!!"))
    assert (first.expert, second.expert) == ("ab", "c")
    assert second.expert_ids == tuple(map(ord, "c."))
    assert (first.actions, second.actions) == ((), ("ab",))
    assert (second.trajectory, second.turn, second.task) == ("t", 1, TASK)


def test_turns_count_on_across_the_spines_of_a_split_trajectory():
    states = expert_turns(TRAJECTORY, [spine("?a.", (1, 3)), spine("?!b.!c.", (2, 4), (5, 7))], letters)
    assert [s.id for s in states] == ["t#t0", "t#t1", "t#t2"]
    assert [s.actions for s in states] == [(), ("a",), ("a", "b")]
    assert states[1].ids == tuple(map(ord, "?!"))


def test_without_a_task_there_is_no_world_to_play_in():
    (state,) = expert_turns(Trajectory("t", ()), [spine("?a.", (1, 3))], letters)
    assert state.task == Task("", "t", "train")


def test_the_rule_keeps_every_turn_and_needs_no_profile():
    states = expert_turns(TRAJECTORY, [spine("?a.", (1, 3))], letters)
    assert ExpertTurns().select(states, {}) == states
    assert (ExpertTurns().source, ExpertTurns().k) == ("expert", 0)
