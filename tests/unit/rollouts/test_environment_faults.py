"""What a world raises, and an answer that never comes, as the one fault that rollouts know."""

from __future__ import annotations

import signal
import threading
import time
from functools import partial

import pytest
from tests.unit.rollouts.episodes_after import after

from turnwise.env import TRIES, EnvironmentFault, tried
from turnwise.errors import InputError
from turnwise.rollouts.environment_faults import guarded
from turnwise.rollouts.episodes import Episodes
from turnwise.rollouts.openings import Openings
from turnwise.training.expert_files import expert_file
from turnwise_worlds.household import HouseholdEnv


def test_whatever_is_raised_is_a_fault_with_its_cause():
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError: division by zero") as caught, guarded(5):
        _ = 1 / 0
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("error", [InputError("install it"), EnvironmentFault("gone"), KeyboardInterrupt()])
def test_what_says_something_else_is_let_through(error):
    with pytest.raises(type(error)) as caught, guarded(5):
        raise error
    assert caught.value is error
    with pytest.raises(ValueError, match="no task of ours"), guarded(passing=(ValueError,)):
        raise ValueError("no task of ours")


def hang():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


def test_a_hang_that_swallows_exceptions_ends_too():
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match=r"no answer within 0\.05 s"), guarded(0.05):
        hang()
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("part", ["step", "fork"])
def test_a_kept_episode_that_fails_is_given_up_once(part):
    world = HouseholdEnv(horizon=3)
    (task,) = world.tasks("train", 1)
    episodes = Episodes(world)
    after(episodes, task, ("look",))
    kept = episodes.kept[task.env, task.id, ("look",)]
    broken = type("Broken", (), {part: lambda self, *given: 1 / 0, "fork": lambda self: 1 / 0})()
    episodes.kept = dict.fromkeys(episodes.kept, broken)
    with pytest.raises(EnvironmentFault):  # the player counts it
        after(episodes, task, ("look",))
    assert after(episodes, task, ("look",)).turns == kept.turns


def test_a_task_of_another_world_is_named_and_no_fault():
    world = HouseholdEnv()
    (task,) = world.tasks("train", 1)
    with pytest.raises(ValueError, match="made for env 'x'"):
        after(Episodes(world), type(task)("x", "t", "train"), ())


def test_the_alarm_of_another_goes_on():
    rung = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(1))
    before = signal.setitimer(signal.ITIMER_REAL, 30)
    try:
        with guarded(5):
            pass
        assert 20 < signal.getitimer(signal.ITIMER_REAL)[0] <= 30
        with pytest.raises(EnvironmentFault, match=r"no answer within 0\.01 s"), guarded(0.01):
            time.sleep(5)
        assert signal.getsignal(signal.SIGALRM) is not handler and not rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def test_another_thread_has_no_limit_and_the_same_faults():
    found = []

    def work():
        try:
            with guarded(0.01):
                time.sleep(0.05)
                raise ZeroDivisionError("a bug of the world")
        except EnvironmentFault as fault:
            found.append(str(fault))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == ["ZeroDivisionError: a bug of the world"]


def test_openings_and_demonstrations_are_tried_again(tmp_path):
    asked = []

    def act():
        asked.append(1)
        if len(asked) < TRIES:
            raise EnvironmentFault("gone")
        return "there"

    assert tried(act) == "there"
    with pytest.raises(EnvironmentFault, match="gone"):
        tried(lambda: asked.clear() or act())

    class Once(HouseholdEnv):
        def demonstrate(self, task, quality="good", seed=0):
            if not failed:
                failed.append(task.id)
                raise EnvironmentFault("gone")
            return super().demonstrate(task, quality, seed)

    failed: list[str] = []
    path = expert_file(Once(), 2, tmp_path)
    assert len(path.read_text().splitlines()) == 2 and len(failed) == 1


@pytest.mark.parametrize("threads", [0, 2])
def test_an_opening_that_hangs_ends_and_names_the_task(threads):
    over = threading.Event()

    class Hanging(HouseholdEnv):
        waits = True

        def reset(self, task):
            over.wait(30)
            raise KeyError

    opening = Openings(Hanging(), None, threads, seconds=0.05)
    (task,) = HouseholdEnv().tasks("train", 1)
    with pytest.raises(EnvironmentFault, match=rf"task {task.id} cannot be opened: no answer within 0\.05 s"):
        opening(task)
    over.set()


@pytest.mark.parametrize("threads", [0, 2])
def test_demonstrations_are_tried_again_after_any_error(tmp_path, threads):
    class Once(HouseholdEnv):
        waits = True

        def demonstrate(self, task, quality="good", seed=0):
            if not failed:
                failed.append(task.id)
                raise ConnectionError("reset by peer")
            return super().demonstrate(task, quality, seed)

    failed: list[str] = []
    guard = partial(guarded, passing=(ValueError,))
    path = expert_file(Once(), 2, tmp_path, threads=threads, guard=guard)
    assert len(path.read_text().splitlines()) == 2 and len(failed) == 1
