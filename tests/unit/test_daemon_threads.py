"""Daemon threads: how many run at once, what a close cancels, and a process that ends without waiting."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from turnwise.daemon_threads import DaemonThreads


def test_functions_run_together_up_to_the_most_and_in_order() -> None:
    threads, meeting, order = DaemonThreads(3, "t"), threading.Barrier(3), list[int]()
    assert [f.result(60) for f in [threads.submit(lambda: meeting.wait(60)) for _ in range(3)]]
    one = DaemonThreads(1, "t")
    for future in [one.submit(lambda n=n: order.append(n)) for n in range(50)]:  # type: ignore[misc]
        future.result(60)
    assert order == list(range(50))
    with pytest.raises(KeyError, match="wrong"):
        one.submit(lambda: {}["wrong"]).result(60)


def test_close_cancels_what_is_queued_and_lets_the_running_end() -> None:
    threads, started, free = DaemonThreads(1, "t"), threading.Event(), threading.Event()
    running = threads.submit(lambda: (started.set(), free.wait(60)))
    queued = threads.submit(lambda: 1)
    assert started.wait(60)
    threads.close()
    with pytest.raises(CancelledError):
        queued.result(60)
    with pytest.raises(RuntimeError, match="close"):
        threads.submit(lambda: 1)
    free.set()
    assert running.result(60) == (None, True)


def test_a_process_ends_while_a_function_waits() -> None:
    code = (
        "import threading\nfrom turnwise.daemon_threads import DaemonThreads\n"
        "DaemonThreads(2, 't').submit(lambda: threading.Event().wait())\nprint('end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "end\n"
