"""The Python tool in several threads: what a snippet printed stays true in later turns, whichever sandbox runs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.math import Interpreter
from turnwise.sandbox.bubblewrap import reason
from turnwise.sandbox.python_server import PythonServer
from turnwise.sandbox.sandbox import Limits, SandboxFault

pytestmark = pytest.mark.skipif(reason() is not None, reason="no sandbox works here")
DRAWN = "import random\nx = random.random()\nprint(x)"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interpreter]:
    monkeypatch.setattr("turnwise.envs.math.interpreter.os.cpu_count", lambda: 3)
    tool = Interpreter(limits=Limits(seconds=1))
    yield tool
    tool.close()


def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list to which the code of each snippet is added that a sandbox runs."""
    codes: list[str] = []
    run = PythonServer.run

    def noted(self: PythonServer, number: int, code: str) -> Any:
        codes.append(code)
        return run(self, number, code)

    monkeypatch.setattr(PythonServer, "run", noted)
    return codes


def test_equal_snippets_at_the_same_time_run_once(tool: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = asked(monkeypatch)
    with ThreadPoolExecutor(6) as pool:
        found = set(pool.map(lambda _: tool.run((), DRAWN), range(6)))
    assert len(found) == 1 and codes == [DRAWN] and tool.run((), DRAWN) in found


def test_a_drawn_number_stays_the_same_while_its_sandbox_is_busy(tool: Interpreter) -> None:
    first = tool.run((), DRAWN).output
    with ThreadPoolExecutor(1) as pool:
        with tool._box(()):  # the sandbox that holds x
            later = pool.submit(tool.run, (DRAWN,), "print(x)")
            end = time.monotonic() + 60
            while len(tool._boxes) < 2 and time.monotonic() < end:
                time.sleep(0.01)
        assert later.result(60).output == first
    assert len(tool._boxes) == 2  # another sandbox tried, and drew another number


def test_a_plain_snippet_does_not_wait_for_a_busy_sandbox(tool: Interpreter) -> None:
    tool.run((), "x = 3")
    with ThreadPoolExecutor(1) as pool, tool._box(()):
        assert pool.submit(tool.run, ("x = 3",), "x + 1").result(60).output == "4\n"


def test_a_snippet_that_was_stopped_does_not_run_again(tool: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    codes, endless = asked(monkeypatch), "y = 1\nwhile True: pass"
    assert tool.run((), endless).stopped == "time"
    tool._boxes[0].states.clear()
    assert tool.run((endless,), "'y' in globals()").output == "False\n" and codes.count(endless) == 1


def test_all_sandboxes_order_a_set_alike(tool: Interpreter) -> None:
    code = "print({'north', 'east', 'south', 'west', 'up', 'down', 'left', 'right'})"
    with tool._box(()) as first, tool._box(()) as second:
        outputs = {tool._state(box, (), False).run(code)[0].output for box in (first, second)}
    assert len(outputs) == 1


def test_closing_ends_a_sandbox_that_a_thread_uses(tool: Interpreter) -> None:
    started = threading.Event()

    def slow() -> None:
        with tool._box(()) as box:
            tool._state(box, (), False)
            started.set()
            while not box.closed:
                time.sleep(0.01)
            box.sandbox.python()  # type: ignore[union-attr]  # starts again, as a snippet between two calls would
            with pytest.raises(SandboxFault, match="closed"):
                tool._opened(box)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(slow)
        assert started.wait(60)
        (box,) = tool._boxes
        tool.close()
        running.result(60)
    assert box.sandbox._server is None and not tool._boxes  # type: ignore[union-attr]
    assert tool.run((), "1 + 1").output == "2\n"  # it can be used again


def test_a_fault_of_a_sandbox_lets_other_threads_try(tool: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    run, left = PythonServer.run, [SandboxFault("died")]

    def once(self: PythonServer, number: int, code: str) -> Any:
        if left:
            raise left.pop()
        return run(self, number, code)

    monkeypatch.setattr(PythonServer, "run", once)
    with pytest.raises(EnvironmentFault, match="died"):
        tool.run((), "1 + 1")
    assert tool.run((), "1 + 1").output == "2\n" and not tool._under_way


def test_after_an_interrupted_snippet_the_next_one_runs_in_a_fresh_server(
    tool: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ring(self: PythonServer, seconds: float) -> Any:
        raise KeyboardInterrupt

    assert tool.run(("x = 4",), "x").output == "4\n"
    with monkeypatch.context() as patched:
        patched.setattr(PythonServer, "_receive", ring)
        with pytest.raises(KeyboardInterrupt):
            tool.run(("x = 4",), "x + 1")
    assert tool.run(("x = 4",), "x + 2").output == "6\n"
