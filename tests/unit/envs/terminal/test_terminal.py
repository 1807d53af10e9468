"""The terminal world."""

from __future__ import annotations

import pytest

from turnwise.env import EnvironmentFault
from turnwise.types import Task
from turnwise_worlds.boxed import Box
from turnwise_worlds.terminal import TerminalEnv, normalised

FILES = {"desk/a.txt": "cup\nfork\ncup\n", "desk/b.txt": "lamp\nmug\n", "shelf/c.txt": "egg\n"}
CHORES = [
    {"kind": "count", "text": "count the lines of the file with fork into count.txt", "find": "fork", "path": "desk/a.txt",
     "want": {"count.txt": "3\n"}, "gone": [], "command": "wc -l < {path} > count.txt"},
    {"kind": "move", "text": "move desk/b.txt to shelf", "find": None, "path": "desk/b.txt",
     "want": {"shelf/b.txt": "lamp\nmug\n"}, "gone": ["desk/b.txt"], "command": "mv {path} shelf"},
]  # fmt: skip
HAND = Task("terminal", "hand/0", "train", {"files": FILES, "folders": ["desk", "shelf"], "chores": CHORES})


@pytest.fixture
def env(box: Box) -> TerminalEnv:
    return TerminalEnv(box=box)


def said(env: TerminalEnv, command: str) -> str:
    return env.reset(HAND).write("bash", command)


def test_a_hand_made_episode(env: TerminalEnv) -> None:
    session = env.reset(HAND)
    assert session.opening()[-1]["content"] == f"1. {CHORES[0]['text']}\n2. {CHORES[1]['text']}"
    assert session.step("grep -rl fork").observation == "desk/a.txt"
    assert session.step("wc -l < desk/none.txt").observation.endswith("exit status 1")
    assert session.step("wc -l < desk/a.txt > count.txt").observation == "ok"
    last = session.step("mv desk/b.txt shelf; echo bye")
    assert (last.observation, last.reward, last.done, last.won) == ("bye", 1.0, True, True)
    with pytest.raises(RuntimeError, match="over after 4 turns"):
        session.step("ls")


def test_a_sandbox_that_fails_is_a_fault_and_costs_no_turn(env: TerminalEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: str, tree: object) -> None:
        raise EnvironmentFault("gone")

    session = env.reset(HAND)
    monkeypatch.setattr(env._box, "run", fail)
    with pytest.raises(EnvironmentFault):
        session.step("ls")
    assert session.turns == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("grep  -rl 'fork'", ["grep", "-l", "-r", "fork"]),
        ("grep -l -r fork", ["grep", "-l", "-r", "fork"]),
        ('mv "./a b" ./c', ["mv", "a b", "c"]),
        ("wc -l<a>b", ["wc", "-l", "<", "a", ">", "b"]),
        ("echo 'open", ["echo", "'open"]),
        ("ls --all -", ["ls", "--all", "-"]),
    ],
)
def test_commands_as_words(command: str, words: list[str]) -> None:
    assert normalised(command) == words


def test_similarity_reads_the_calls_and_asks_the_judge_below_the_threshold(box: Box) -> None:
    asked = []

    def judge(ours: str, theirs: str) -> bool:
        asked.append((ours, theirs))
        return ours == "find"

    env = TerminalEnv(calls="hermes", verifier="similarity", threshold=0.75, judge=judge, box=box)
    session, expert = env.reset(HAND), said(env, "grep -rl fork")
    for command, accepted in [("grep -r -l 'fork'", True), ("grep -rl mug", True), ("find", True), ("ls desk", False)]:
        assert env.accepts(session, said(env, command), expert) is accepted  # 3 of 4 words alike is 0.75
    assert asked == [("find", "grep -rl fork"), ("ls desk", "grep -rl fork")]
    assert not env.accepts(session, "grep -rl fork", expert)  # no call
    assert not env.accepts(session, said(env, "grep -rl fork").replace("bash", "sh"), expert)
