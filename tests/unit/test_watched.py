"""How long whole runs are waited for: as long as they compute, whatever the clock says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.watched import Watch, end, outcome, processor_seconds, wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def test_a_run_that_computes_a_little_never_hangs_and_one_that_waits_does() -> None:
    watch = Watch(idle=100.0)
    # a fiftieth of a processor, as on a machine with fifty times as much to do, for ten times as long as a run may wait
    assert not any(watch.hangs(now, now / 50) for now in range(0, 1000, 5))
    stuck = [watch.hangs(now, 20.0) for now in range(1000, 1200, 5)]
    assert stuck == [False] * 20 + [True] * 20


def test_a_child_that_waits_for_ever_is_ended_and_what_a_child_of_it_computes_is_seen() -> None:
    asleep = subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with pytest.raises(AssertionError, match="has not computed"):
        outcome(asleep, idle=0.2)
    assert asleep.returncode == -9
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    parent = subprocess.Popen([sys.executable, "-c", busy], start_new_session=True, stderr=subprocess.PIPE)
    try:
        wait_until(parent, lambda: processor_seconds(parent.pid) > 0.5)
    finally:
        end(parent)
    assert parent.returncode == -9


def test_a_run_that_ends_before_what_is_waited_for_is_told() -> None:
    gone = subprocess.Popen(["sh", "-c", "echo why >&2"], stderr=subprocess.PIPE)
    with pytest.raises(AssertionError, match="why"):
        wait_until(gone, lambda: False)
    assert outcome(subprocess.Popen(["echo", "said"], stdout=subprocess.PIPE)) == (b"said\n", None)
