"""Coroutines that ordinary threads wait for (a late one is cancelled, and so is one whose caller is interrupted), and forks."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from turnwise.env import EnvironmentFault, Session, Step
from turnwise.rollouts.episodes import episode_guard
from turnwise_worlds import workers


async def late(cancelled: threading.Event) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        cancelled.set()


async def blocking(until: threading.Event) -> None:
    until.wait(20)


def test_a_late_coroutine_and_one_whose_guard_rings_are_cancelled() -> None:
    for seconds, guard in ((0.1, None), (60.0, 0.2)):
        cancelled = threading.Event()
        began = time.monotonic()
        with pytest.raises(EnvironmentFault), episode_guard(guard):
            workers.run_on_worker_loop(late(cancelled), seconds, "here")
        assert cancelled.wait(20) and time.monotonic() - began < 40


def test_the_message_tells_a_loop_that_is_blocked() -> None:
    until = threading.Event()
    try:
        with pytest.raises(EnvironmentFault, match="synchronous"):
            workers.run_on_worker_loop(blocking(until), 0.1, "here")
    finally:
        until.set()
    assert workers.run_on_worker_loop(asyncio.sleep(0, 3), 20, "here") == 3


# -- forks -------------------------------------------------------------------------------------------------------------


class Notes(Session):
    def __init__(self) -> None:
        self.all: list[list[str]] = [["a"]]
        self.last = self.all[0]

    def step(self, action: str) -> Step:
        self.last.append(action)
        return Step("", False)


def test_a_fork_shares_no_list_and_its_own_lists_stay_one() -> None:
    session = Notes()
    fork = session.fork()
    fork.step("b")
    assert (session.all, fork.all, fork.last) == ([["a"]], [["a", "b"]], ["a", "b"])


class Room:
    def fork(self) -> Room:
        return Room()


def test_two_names_of_one_forked_value_stay_one() -> None:
    session = Notes()
    vars(session).update(room=Room())
    vars(session).update(here=vars(session)["room"])
    fork = vars(session.fork())
    assert fork["room"] is fork["here"] is not vars(session)["room"]
