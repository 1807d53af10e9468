"""The sandbox as worlds see it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from turnwise.env import Environment, EnvironmentFault, check_ready
from turnwise.errors import InputError
from turnwise_worlds import workspace
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.math import MathEnv
from turnwise_worlds.sandbox import sandbox as bubblewrap
from turnwise_worlds.sandbox.folder_value import folder_tree
from turnwise_worlds.sandbox.sandbox import SandboxFault
from turnwise_worlds.software import SoftwareEnv
from turnwise_worlds.terminal import TerminalEnv
from turnwise_worlds.workspace import Box


def test_a_command_is_run_once_for_each_folder(box: Box) -> None:
    first = box.run("echo $RANDOM$RANDOM > x; cat x", folder_tree({"a": "1"}))
    assert box.run("echo $RANDOM$RANDOM > x; cat x", folder_tree({"a": "1"})) == first
    assert box.run("echo $RANDOM$RANDOM > x; cat x", folder_tree({"a": "2"})) != first


def test_threads_that_ask_the_same_share_one_answer(box: Box) -> None:
    with ThreadPoolExecutor(8) as pool:
        same = list(pool.map(lambda _: box.run("sleep 0.2; date +%N > now", {}), range(8)))
        apart = list(pool.map(lambda i: box.run(f"echo {i} > here", {}), range(8)))
    assert len({id(result) for result in same}) == 1
    assert [tree["here"].content for _, tree in apart] == [f"{i}\n".encode() for i in range(8)]  # type: ignore[union-attr]


def test_a_fault_of_the_sandbox_is_one_of_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def shell(self, command: str, tree: object) -> object:
            raise SandboxFault("it broke")

    monkeypatch.setattr(workspace, "open_sandbox", lambda *rest: Broken())
    with pytest.raises(EnvironmentFault, match="it broke"):
        Box().run("echo", {})


@pytest.mark.parametrize("env", [TerminalEnv(), SoftwareEnv(), MathEnv()])
def test_without_bubblewrap_a_run_is_refused_before_it_starts(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match="apt-get install bubblewrap"):
        check_ready(env)
    with pytest.raises(InputError, match="apt-get install bubblewrap"):
        check_ready(Parts({"household": MathEnv(python=False), "other": env}))


def test_what_runs_no_code_needs_no_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    check_ready(MathEnv(python=False))
    check_ready(HouseholdEnv())


@dataclass
class Parts:
    parts: Mapping[str, Environment]
