"""One piece of work beside another."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
import torch

from turnwise.training.collect_ahead import Overlap


def test_work_goes_on_beside_and_is_taken_once() -> None:
    overlap, may_end = Overlap[str](), threading.Event()
    overlap.begin(1, lambda: "done" if may_end.wait(10) else "late")  # nobody waits: this line is passed at once
    may_end.set()
    overlap.settle()
    assert overlap.take(1) == "done"
    assert overlap.take(1) is None and overlap.take(2) is None


def test_what_it_raises_is_raised_where_it_is_taken() -> None:
    overlap = Overlap[str]()

    def fails() -> str:
        raise OSError("no room")

    overlap.begin(1, fails)
    overlap.settle()
    with pytest.raises(OSError, match="no room"):
        overlap.take(1)
    overlap.begin(2, lambda: "again")
    assert overlap.take(2) == "again"


def test_pieces_run_one_after_the_other_and_are_taken_in_their_order() -> None:
    overlap, order = Overlap[int](), []

    def piece(number: int) -> int:
        order.append(f"begins {number}")
        time.sleep(0.01 * (3 - number))
        order.append(f"ends {number}")
        return number

    for number in range(3):
        overlap.begin(number, partial(piece, number))
    with pytest.raises(RuntimeError, match="0 was started, not 2"):
        overlap.take(2)
    assert [overlap.take(number) for number in range(3)] == [0, 1, 2]
    assert order == [f"{what} {number}" for number in range(3) for what in ("begins", "ends")]


def test_a_piece_that_fails_ends_those_after_it() -> None:
    overlap, ran = Overlap[int](), []

    def fails() -> int:
        raise OSError("no room")

    overlap.begin(1, fails)
    overlap.begin(2, lambda: ran.append(2) or 2)
    overlap.settle()
    for number in (1, 2):
        with pytest.raises(OSError, match="no room"):
            overlap.take(number)
    assert not ran


def test_it_computes_with_as_many_threads_as_whoever_began_it() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        other = threading.Thread(target=torch.set_num_threads, args=(1,))  # as the threads of an update do
        other.start()
        other.join()
        overlap = Overlap[int]()
        overlap.begin(1, torch.get_num_threads)
        assert overlap.take(1) == 3
    finally:
        torch.set_num_threads(before)
