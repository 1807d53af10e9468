"""Worker processes that answer, die, or close their output and go on."""

from __future__ import annotations

import sys
import time

import pytest

from turnwise_worlds.workers import JsonWorker, NoAnswerError


def worker(code: str) -> JsonWorker:
    return JsonWorker([sys.executable, "-c", f"import os, sys, time\nprint('{{}}', flush=True)\n{code}"], {})


def test_a_worker_that_died_is_told_with_its_exit_status() -> None:
    process = worker("sys.stdin.readline()\nsys.exit(3)")
    assert process.ask(None, 30.0) == {}
    with pytest.raises(NoAnswerError, match=r"died \(exit status 3\)"):
        process.ask({}, 30.0)


def test_a_worker_that_closed_its_output_is_not_waited_for() -> None:
    process = worker("os.close(1)\ntime.sleep(20)")
    process.ask(None, 30.0)
    began = time.monotonic()
    with pytest.raises(NoAnswerError, match="died"):
        process.ask({}, 30.0)
    assert time.monotonic() - began < 10
