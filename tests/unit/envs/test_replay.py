"""Sessions of packages that cannot copy an episode: forks repeat their actions, and what differs is told."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.rollouts.episodes_after import after

from turnwise.config.conflicts import forking_parts
from turnwise.envs.environment import EnvironmentFault, Step, check_forkable, check_ready
from turnwise.envs.replay import ReplayDiffersError, ReplayedEnv, ReplayedSession
from turnwise.errors import InputError
from turnwise.rollouts.episodes import Episodes
from turnwise.types import Message, Task


@dataclass
class Sum:
    """An episode of our own: numbers are added to a start, and 10 wins. ``drift`` is added to every answer."""

    total: int
    drift: int = 0
    closed: list[int] = field(default_factory=list)
    fails: bool = False

    def opening(self) -> list[Message]:
        return [{"role": "user", "content": f"at {self.total}"}]

    def act(self, text: str) -> Step:
        if self.fails:
            raise EnvironmentFault("dead")
        self.total += int(text) if text.isdecimal() else 0
        return Step(f"{self.total + self.drift}", float(self.total), self.total >= 10, self.total == 10)

    def admissible(self) -> list[str]:
        return [str(number) for number in range(1, 11 - self.total)]

    def close(self) -> None:
        self.closed.append(self.total)


class Sums(ReplayedEnv):
    """Opens :class:`Sum` at the number of the task; ``drifts`` are taken in turn by the episodes opened."""

    name, horizon = "sums", 6

    def __init__(self, drifts: Sequence[int] = (0,), starts: Sequence[int] = (0,)) -> None:
        self.opened: list[Sum] = []
        self.drifts, self.starts = itertools.cycle(drifts), itertools.cycle(starts)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task("sums", f"{split}/{number}", split, {"start": number}) for number in range(count)]

    def open_episode(self, task: Task) -> Sum:
        self.opened.append(Sum(task.data["start"] + next(self.starts), next(self.drifts)))
        return self.opened[-1]

    def reset(self, task: Task) -> ReplayedSession:
        return self.begin(task)


def begun(env: Sums, *actions: str) -> ReplayedSession:
    session = env.reset(env.tasks("train", 1)[0])
    for action in actions:
        session.step(action)
    return session


def test_a_plain_episode_and_a_chain_of_forks_are_opened_once() -> None:
    env = Sums()
    session = begun(env, "1")
    for _ in range(3):
        session = session.fork()
        session.step("1")
    assert [taken.step.observation for taken in session.taken] == ["1", "2", "3", "4"]
    assert len(env.opened) == 1


def test_a_fork_and_its_parent_go_their_own_ways() -> None:
    env = Sums()
    parent = begun(env, "1", "2")
    one, two = parent.fork(), parent.fork()
    assert one.step("4").observation == "7" and two.step("5").observation == "8"
    assert parent.step("7") == Step("10", 10.0, True, True)
    assert (parent.won, one.won, one.step("3").won) == (True, False, True)
    assert len(env.opened) == 3  # the first that acts goes on in the live episode


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.booleans()), max_size=30))
def test_any_family_of_forks_answers_as_values_do(steps: list[tuple[int, int, bool]]) -> None:
    sessions, totals = [begun(Sums())], [0]
    for which, add, fork in steps:
        place = which % len(sessions)
        if fork:
            sessions.append(sessions[place].fork())
            totals.append(totals[place])
        elif not sessions[place].done:
            totals[place] += add
            assert sessions[place].step(str(add)).observation == str(totals[place])
    assert all(s.done or len(s.taken) < Sums.horizon for s in sessions)


def test_the_horizon_ends_an_episode_that_the_package_would_not_end() -> None:
    session = begun(Sums(), *["nothing"] * 5)
    assert not session.done and session.step("nothing").done and not session.won
    with pytest.raises(RuntimeError, match="over"):
        session.step("1")
    assert session.admissible() == []


def test_what_differs_is_told_with_task_turn_and_both_texts() -> None:
    parent = begun(Sums(drifts=(0, 5)), "1", "2")
    fork = parent.fork()
    parent.step("1")
    with pytest.raises(ReplayDiffersError, match=r"task train/0.*turn 1, action '1'.*first.*1.*then.*6.*method=grpo"):
        fork.step("1")
    assert issubclass(ReplayDiffersError, InputError)  # no fault: it is not tried again


def test_an_opening_that_changes_is_told() -> None:
    env = Sums(starts=(0, 1))
    with pytest.raises(ReplayDiffersError, match="task train/0"):
        check_ready(env)
    check_ready(Sums())


def test_an_episode_that_failed_is_repeated_in_a_fresh_one() -> None:
    env = Sums()
    session = begun(env, "1")
    env.opened[0].fails = True
    with pytest.raises(EnvironmentFault):
        session.step("1")
    assert session.step("2").observation == "3" and len(env.opened) == 2


def test_episodes_are_closed_at_their_end_and_where_nobody_holds_them() -> None:
    env = Sums()
    ended, dropped = begun(env, "9", "1"), begun(env, "3")
    assert env.opened[0].closed == [10] and not env.opened[1].closed
    del ended, dropped
    gc.collect()
    assert env.opened[1].closed == [3]


def test_closing_a_session_leaves_the_episode_of_its_fork_alone() -> None:
    env = Sums()
    parent = begun(env, "1")
    fork = parent.fork()
    fork.step("2")
    parent.close()
    assert not env.opened[0].closed and fork.step("3").observation == "6"
    fork.close()
    assert env.opened[0].closed == [6]
    assert fork.step("1").observation == "7" and parent.step("1").observation == "2" and len(env.opened) == 3


def test_a_step_under_way_is_ended_and_the_next_one_repeats() -> None:
    env = Sums()
    session = begun(env, "1")
    waiting, ended = threading.Event(), threading.Event()

    def late(text: str) -> Step:
        waiting.set()
        assert ended.wait(20)
        return Step("late")

    env.opened[0].act = late  # type: ignore[method-assign]
    env.opened[0].close = ended.set  # type: ignore[method-assign]
    step = threading.Thread(target=session.step, args=("2",))
    step.start()
    assert waiting.wait(20)
    session.close()
    step.join(20)
    assert not step.is_alive() and len(session.taken) == 2


def test_cached_episodes_hold_at_most_one_that_is_live() -> None:
    env: Any = Sums()
    episodes = Episodes(env)
    for task in env.tasks("train", 3):
        after(episodes, task, ("1", "1")).step("1")
    gc.collect()
    assert [bool(each.closed) for each in env.opened] == [True, True, False]
    first = env.tasks("train", 1)[0]
    for actions in (("1", "1"), ("1", "1", "1"), ("1", "1", "1", "1")):
        after(episodes, first, actions)  # is only looked at, so that the next place continues it
    gc.collect()
    assert [bool(each.closed) for each in env.opened] == [True, True, True, False]


def test_what_can_be_done_is_listed_where_the_fork_stands() -> None:
    parent = begun(Sums(), "7")
    fork = parent.fork()
    parent.step("1")
    assert fork.admissible() == ["1", "2", "3"] and parent.admissible() == ["1", "2"]


def test_methods_that_fork_are_refused_at_the_start_with_the_reason() -> None:
    check_forkable(Sums(), ["states=pivots"])
    check_forkable(Sums(drifts=(0, 5)), [])  # method=grpo needs no fork
    with pytest.raises(InputError, match=r"env=sums: states=pivots and allocator=trace.*turn 1"):
        check_forkable(Sums(drifts=(0, 5)), ["states=pivots", "allocator=trace"])


def test_a_trial_needs_no_list_of_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Sum, "admissible")
    env = Sums()
    assert env.unforkable() == "" and env.trial(begun(env), random.Random(0)) == "look"


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"states": "ExpertTurns"}, []),  # sft plays nothing
        ({"states": "TaskStarts", "allocator": "Uniform"}, []),
        ({"states": "Pivots", "allocator": "Uniform"}, ["states=pivots"]),
        ({"states": "TaskStarts", "allocator": "TreePO", "branches": 2}, ["allocator=treepo"]),
        ({"states": "TaskStarts", "allocator": "Trace", "expansion": 0}, []),
    ],
)
def test_which_parts_fork(parts: dict[str, Any], named: list[str]) -> None:
    cfg: dict[str, Any] = {key: {"_target_": f"x.{name}"} for key, name in parts.items() if isinstance(name, str)}
    cfg.get("allocator", {}).update({key: value for key, value in parts.items() if isinstance(value, int)})
    assert forking_parts(cfg) == named


def test_rollouts_of_a_group_open_one_episode_each_and_repeat_nothing() -> None:
    env: Any = Sums()

    episodes = Episodes(env)
    task = env.tasks("train", 1)[0]
    for _ in range(4):
        after(episodes, task, ()).step("1")
    assert len(env.opened) == 4
