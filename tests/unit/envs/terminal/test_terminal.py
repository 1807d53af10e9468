"""The terminal world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnwise.env import EnvironmentFault
from turnwise.judges.endpoint import Reply
from turnwise.training.profile import distinct
from turnwise.types import State, Task, ToolCall
from turnwise_worlds.terminal import CommandJudge, TerminalEnv, normalised
from turnwise_worlds.workspace import Box

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
    monkeypatch.setattr(env.box, "run", fail)
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
    with_answer = said(env, "grep -rl fork").replace('"command"', '"text"')
    assert not env.accepts(session, with_answer, expert)  # a call that does not fit the schema is never judged
    assert not env.accepts(session, said(env, "grep -rl fork").replace("bash", "sh"), expert)


class Model:
    """A chat client that gives the answers in turn."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), list[dict[str, Any]]()

    async def ask(self, request: dict[str, Any]) -> Reply:
        self.asked.append(request)
        return Reply(self.answers.pop(0), "stop")

    async def close(self) -> None:
        pass


def test_a_model_judges_what_is_not_similar_and_is_asked_once(box: Box, tmp_path: Path) -> None:
    model = Model('{"score": 1}', '<think>other files</think>{"score": 0}', "yes")
    judge = CommandJudge(model, "judge", cache=str(tmp_path / "commands.sqlite"))  # type: ignore[arg-type]
    env = TerminalEnv(calls="hermes", verifier="similarity", judge=judge, box=box)
    session, expert = env.reset(HAND), said(env, "ls desk/a.txt")
    found, mug = said(env, "find . -name a.txt"), said(env, "cat shelf/mug.txt now")
    assert [env.accepts(session, action, expert) for action in (expert, found, found, mug)] == [True, True, True, False]
    system, user = (str(message["content"]) for message in model.asked[0]["messages"])
    assert "equivalent" in system and "| find . -name a.txt" in user and "| ls desk/a.txt" in user
    assert len(model.asked) == 2
    with pytest.raises(EnvironmentFault, match="no verdict"):
        env.accepts(session, said(env, "stat the file"), expert)
    judge.close()


def test_of_equal_commands_one_is_a_candidate() -> None:
    env = TerminalEnv("full")
    write = env._calls.write
    commands = ["grep -l -r fork", "grep -rl 'fork'", "grep -rl mug", "grep -rl fork"]
    states = [
        State(str(i), HAND, (), expert=write(ToolCall("bash", {"command": command})))
        for i, command in enumerate(commands)
    ]
    assert [state.id for state in distinct(env, states)] == ["0", "2"]
    assert distinct(TerminalEnv("full", candidates="all"), states) == states
