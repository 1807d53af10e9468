"""The sandbox as worlds see it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from turnwise.env import Environment, EnvironmentFault, check_ready
from turnwise.errors import InputError
from turnwise_worlds import boxed
from turnwise_worlds.boxed import Box, cut, digest
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.math import MathEnv
from turnwise_worlds.sandbox import sandbox as bubblewrap
from turnwise_worlds.sandbox.folder_value import File, Link, tree_of
from turnwise_worlds.sandbox.sandbox import Limits, SandboxFault
from turnwise_worlds.scripted import ENTRY, Remembered
from turnwise_worlds.software import SoftwareEnv
from turnwise_worlds.terminal import TerminalEnv


def test_a_command_is_run_once_for_each_folder(box: Box) -> None:
    first = box.run("echo $RANDOM$RANDOM > x; cat x", tree_of({"a": "1"}))
    assert box.run("echo $RANDOM$RANDOM > x; cat x", tree_of({"a": "1"})) == first
    assert box.run("echo $RANDOM$RANDOM > x; cat x", tree_of({"a": "2"})) != first


def test_threads_that_ask_the_same_share_one_answer(box: Box) -> None:
    with ThreadPoolExecutor(8) as pool:
        same = list(pool.map(lambda _: box.run("sleep 0.2; date +%N > now", {}), range(8)))
        apart = list(pool.map(lambda i: box.run(f"echo {i} > here", {}), range(8)))
    assert len({id(result) for result in same}) == 1
    assert [tree["here"].content for _, tree in apart] == [f"{i}\n".encode() for i in range(8)]  # type: ignore[union-attr]


def test_what_a_limit_ended_is_tried_again() -> None:
    box = Box(limits=Limits(seconds=0.5))
    assert box.run("sleep 5", {})[0].stopped == "time"
    assert not box._results


def test_what_is_remembered_is_bounded_in_bytes(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that has found out how to fill a folder must not fill the trainer's memory."""
    monkeypatch.setattr(box, "_results", Remembered(most=5 << 20))
    for n in range(12):
        assert box.run(f"head -c 1000000 /dev/zero > x; echo {n} > y", {})[1]["x"] == File(bytes(1_000_000))
    assert len(box._results) == 5 and box._results.held <= 5 << 20
    box.run("head -c 6000000 /dev/zero > x", {})
    assert len(box._results) == 5


def test_what_was_asked_for_longest_ago_is_forgotten() -> None:
    known: Remembered[str, int] = Remembered(most=3 * ENTRY + 10)
    for n, name in enumerate("abc"):
        known.keep(name, n, 1)
    assert known.get("a") == 0
    known.keep("d", 3, 1)
    assert [known.get(name) for name in "abcd"] == [0, None, 2, 3]
    assert known.held == 3 * (ENTRY + 1)


def test_a_fault_of_the_sandbox_is_one_of_the_world(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def shell(self, command: str, tree: object) -> object:
            raise SandboxFault("it broke")

    monkeypatch.setattr(boxed, "open_sandbox", lambda *rest: Broken())
    with pytest.raises(EnvironmentFault, match="it broke"):
        Box().run("echo", {})


def test_a_copy_opens_a_sandbox_of_its_own(box: Box) -> None:
    box.run("true", {})
    copy = pickle.loads(pickle.dumps(box))
    assert copy == box and copy._sandbox is None


def test_digests_tell_folders_apart() -> None:
    trees = [
        {},
        {"a": None},
        {"a": File(b"")},
        {"a": File(b"", True)},
        {"a": Link("")},
        {"aa": None},
        {"a": File(b"a")},
    ]
    assert len({digest(tree) for tree in trees}) == len(trees)
    assert digest({}, "a", "b") != digest({}, "ab") != digest({}, "a\ud800")
    assert digest({"a": None, "b": None}) == digest({"b": None, "a": None})


def test_long_texts_lose_their_middle() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 4) == "ab\n[3 characters left out]\nfg"


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
