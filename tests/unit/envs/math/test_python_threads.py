"""The Python tool in several threads: what a snippet printed stays true in later turns."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from turnwise.env import EnvironmentFault
from turnwise_worlds.math import Interpreter
from turnwise_worlds.sandbox.sandbox import Limits, PythonState, SandboxFault, reason

pytestmark = pytest.mark.skipif(reason() is not None, reason="no sandbox works here")
DRAWN = "import random\nx = random.random()\nprint(x)"


@pytest.fixture
def tool() -> Iterator[Interpreter]:
    tool = Interpreter(limits=Limits(seconds=2))
    yield tool
    tool.close()


def test_equal_snippets_at_the_same_time_run_once(tool: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[str] = []
    run = PythonState.run

    def noted(self: PythonState, code: str) -> Any:
        codes.append(code)
        return run(self, code)

    monkeypatch.setattr(PythonState, "run", noted)
    with ThreadPoolExecutor(6) as pool:
        outcomes = set(pool.map(lambda _: tool.run((), DRAWN), range(6)))
    assert len(outcomes) == 1 and codes == [DRAWN] and tool.run((), DRAWN) in outcomes


def test_branches_at_the_same_time_see_the_drawn_number_and_not_each_other(tool: Interpreter) -> None:
    first = tool.run((), DRAWN).output
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda i: tool.run((DRAWN,), f"y = {i}\nprint(x, y)").output, range(4)))
    assert outputs == [f"{first.strip()} {i}\n" for i in range(4)]


def test_a_snippet_that_was_stopped_has_changed_nothing(tool: Interpreter) -> None:
    endless = "y = 1\nwhile True: pass"
    assert tool.run(("x = 4",), endless).stopped == "time"
    assert tool.run(("x = 4", endless), "x, 'y' in globals()").output == "(4, False)\n"


def test_a_closed_tool_can_be_used_again(tool: Interpreter) -> None:
    tool.run((), "x = 3")
    tool.close()
    assert tool.run(("x = 3",), "x + 1").output == "4\n"


def test_a_fault_of_the_sandbox_lets_later_calls_try(tool: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: PythonState, code: str) -> Any:
        raise SandboxFault("died")

    with monkeypatch.context() as patched:
        patched.setattr(PythonState, "run", broken)
        with pytest.raises(EnvironmentFault):
            tool.run((), "1 + 1")
    assert tool.run((), "1 + 1").output == "2\n"
