"""What a render that exceeded a limit leaves behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from turnwise.data.render_watch import TemplateLimitError, _request, _Watch

AFTER_A_LONG_RENDER = """
import sys
from turnwise.data import render_watch

render_watch.SECONDS = 0.05
try:
    with render_watch.rendering():
        while True:
            pass
except render_watch.TemplateLimitError:
    pass
sys.setprofile(lambda *_: None)
print((lambda: "called")())
"""


def test_a_profiler_works_after_a_render_that_was_ended() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AFTER_A_LONG_RENDER], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.stdout == "called\n", ran.stderr


class AskedWhileLocking:
    """A lock during whose first use the exception of ``_request`` is raised in the thread that takes the lock."""

    def __init__(self) -> None:
        self.used = False

    def __enter__(self) -> None:
        if not self.used:
            self.used = True
            _request(threading.get_ident(), TemplateLimitError)

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("lock", [threading.Lock, AskedWhileLocking])
def test_a_render_that_returns_although_it_was_to_be_ended_leaves_nothing(lock: Any) -> None:
    watch, me = _Watch(), threading.get_ident()

    def render() -> None:
        with watch.rendering():
            watch._ended[me] = "too slow"
            watch._lock = lock()

    with pytest.raises(TemplateLimitError, match="too slow"):
        render()
    assert not watch._under_way and not watch._ended
    assert sum(range(1000)) == 499500  # no exception is left that is raised here
