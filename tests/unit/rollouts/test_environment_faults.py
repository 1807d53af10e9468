"""What a world raises, and an answer that never comes, as the one fault that rollouts know."""

from __future__ import annotations

import threading
import time

import pytest

from turnwise.env import TRIES, EnvironmentFault, tried
from turnwise.rollouts.environment_steps import Openings, guarded
from turnwise.training.candidates import expert_file
from turnwise_worlds.household import HouseholdEnv


def test_whatever_is_raised_is_a_fault_with_its_cause():
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError") as caught, guarded(5):
        _ = 1 / 0
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def hang():
    while True:
        try:
            time.sleep(0.001)
        except Exception:
            continue


def test_a_hang_that_swallows_exceptions_ends_too():
    began = time.monotonic()
    with pytest.raises(EnvironmentFault), guarded(0.05):
        hang()
    assert time.monotonic() - began < 20


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
    with pytest.raises(EnvironmentFault):
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
    with pytest.raises(EnvironmentFault, match=task.id):
        opening(task)
    over.set()
