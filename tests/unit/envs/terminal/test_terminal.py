"""The terminal world."""

from __future__ import annotations

import pytest

from turnwise.envs.boxed import Box
from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.terminal import Goal, TerminalEnv, TerminalSession, normalised
from turnwise.sandbox.folder_value import File
from turnwise.sandbox.sandbox import Limits
from turnwise.types import Task

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


def play(env: TerminalEnv, *commands: str) -> TerminalSession:
    session = env.reset(HAND)
    for command in commands:
        session.step(said(env, command))
    return session


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


def test_what_is_missing_is_counted() -> None:
    goal = Goal(HAND.data)
    assert goal.missing(goal.start) == 3  # count.txt, shelf/b.txt, and desk/b.txt is still there
    done = {**goal.start, "count.txt": File(b" 3 \n\n"), "shelf/b.txt": File(b"lamp\nmug")}
    del done["desk/b.txt"]
    assert goal.missing(done) == 1  # "3" may have blanks after it, not before
    assert goal.missing({**done, "count.txt": File(b"3")}) == 0
    assert goal.missing({**done, "count.txt": File(b"3"), "extra": None}) == 0
    assert goal.missing({**done, "count.txt": File(b"3"), "shelf/c.txt": File(b"x")}) == 1


@pytest.mark.parametrize("command", ["grep -rl fork", "grep -r fork", "grep fork */*", "cat desk/a.txt", "grep -rn fork .",
                                     "mv desk/b.txt shelf", "mv desk/b.txt shelf/b.txt", "cp desk/b.txt shelf; rm desk/b.txt",
                                     "wc -l < desk/a.txt > count.txt", "echo 3 > count.txt"])  # fmt: skip
def test_commands_that_bring_the_task_forward_are_accepted(env: TerminalEnv, command: str) -> None:
    assert env.accepts(env.reset(HAND), said(env, command), "any")


@pytest.mark.parametrize("command", ["ls", "ls -R", "find .", "cat desk/b.txt", "grep -rl lamp", "grep -rl zebra",
                                     "rm desk/b.txt", "mv desk/b.txt desk/d.txt", "echo 4 > count.txt", "touch x", "sleep 0",
                                     "rm -r desk", "("])  # fmt: skip
def test_near_misses_are_refused(env: TerminalEnv, command: str) -> None:
    session = env.reset(HAND)
    before = session.tree
    assert not env.accepts(session, said(env, command), "any")
    assert session.tree is before and session.turns == 0


def test_what_is_known_already_is_not_paid_again(env: TerminalEnv) -> None:
    session = play(env, "grep -rl fork")
    assert not env.accepts(session, "grep -r fork", "grep -rl fork")
    assert env.accepts(session, "wc -l < desk/a.txt > count.txt", "")


def test_an_endless_command_is_an_observation() -> None:
    env = TerminalEnv(box=Box(limits=Limits(seconds=0.5)))
    step = env.reset(HAND).step("while :; do :; done")
    assert step.observation == "timed out" and not step.done


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
