"""``env=agent``: each request of the user's agent program is one turn of the policy, and its score the reward."""

from __future__ import annotations

import json
import math
import random
import shlex
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from turnwise.data.toolcalls import Format
from turnwise.env import (
    EnvironmentFault,
    Quality,
    Step,
    check_horizon,
    check_tasks,
    first_tasks,
    same_text,
)
from turnwise.errors import InputError
from turnwise.types import Message, Task, Trajectory
from turnwise_worlds.agent.gateway import Asked, Conversation, Desk, continuation, leave, serve, spoken
from turnwise_worlds.boxed import Box
from turnwise_worlds.data_files import read_data_file
from turnwise_worlds.replayed import Opening, ReplayedEnv, ReplayedSession
from turnwise_worlds.sandbox.folder_value import File, Tree, laid_over, read_folder, tree_of
from turnwise_worlds.sandbox.sandbox import HOST, Bubblewrap, CallResult, Door, SandboxFault
from turnwise_worlds.tools import check_format, read_calls

TASK = "task.json"
"""The name of the file in which an agent program finds its task."""


class Row(BaseModel):
    """One line of the tasks file. ``task.json`` passes on further keys to the agent program."""

    model_config = ConfigDict(extra="allow")
    id: str = Field(min_length=1)  # unique within its split
    split: str = Field(default="train", pattern="^(train|seen|unseen)$")
    files: Mapping[str, str] = {}  # path -> text of a file that the agent program finds in its folder
    hidden: Mapping[str, str] = {}  # the same for files that the program never sees, and that are added before scoring


def read_tasks(path: Path, env: str) -> dict[str, list[Task]]:
    """Returns the tasks in a file: split -> its tasks, in the order of the file."""
    tasks: dict[str, dict[str, Task]] = {"train": {}, "seen": {}, "unseen": {}}
    for place, record in read_data_file(path, "env.tasks_file"):
        try:
            row = Row.model_validate(record)
            for name in (*row.files, *row.hidden):
                if {"", ".", ".."} & {*name.split("/")}:
                    raise ValueError(f"the path {name!r} must be relative, without empty parts, '.' or '..'")
            if row.id in tasks[row.split]:
                raise ValueError(f"the task {row.id!r} of split {row.split} occurs twice; rename one of the two")
        except ValueError as error:  # pydantic's errors too
            raise InputError(f"env.tasks_file: {place} is not a valid task: {error}") from error
        tasks[row.split][row.id] = Task(env, f"{row.split}/{row.id}", row.split, dict(record))
    if not any(tasks.values()):
        raise InputError(f"env.tasks_file: {path} contains no task; write one JSON object on each line")
    return {split: list(named.values()) for split, named in tasks.items()}


def folder_of(task: Task) -> Tree:
    """The task's files in the agent program's folder: those of the field ``files``, and ``task.json``."""
    told = {key: value for key, value in task.data.items() if key not in ("files", "hidden")}
    return {**tree_of(task.data.get("files") or {}), TASK: File(json.dumps(told, ensure_ascii=False).encode())}


PORT = 8000  # the gateway's port inside the sandbox, where no other program listens


def with_variables(command: str, variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()) + command


class Program:
    """A running agent program.

    The environment variable ``OPENAI_BASE_URL`` gives the program the gateway's address, and ``OPENAI_API_KEY`` the
    token of the episode.
    """

    def __init__(self, sandbox: Bubblewrap, command: str, tree: Tree, variables: Mapping[str, str]) -> None:
        self.desk = Desk()
        self.result: Future[tuple[CallResult, Tree]] = Future()
        self._kill: Callable[[], None] | None = None
        self._closed = False
        self._lock = threading.Lock()
        told = {"OPENAI_BASE_URL": f"http://{HOST}:{PORT}/v1", "OPENAI_API_KEY": self.desk.token, **variables}
        script = with_variables(command, told)
        threading.Thread(target=self._run, args=(sandbox, script, tree), name="agent", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            kill, self._kill = self._kill, None
        if kill is not None:
            kill()

    def _run(self, sandbox: Bubblewrap, script: str, tree: Tree) -> None:
        try:
            self.result.set_result(sandbox.shell(script, tree, Door(PORT, self._opened)))
        except BaseException as error:  # the error is stored and raised where the result is read
            self.result.set_exception(error)
        finally:
            with self._lock:
                self._kill = None
            leave(self.desk)

    def _opened(self, listener: socket.socket, kill: Callable[[], None]) -> None:
        serve(listener, self.desk)
        with self._lock:
            self._kill = kill
        if self._closed:
            self.close()


SECONDS = 120  # time limit for computing a score, in seconds
_SHOWN = 600  # maximum number of characters of a program's output in an error message


@dataclass(frozen=True, slots=True)
class Scoring:
    """How the reward of an episode is computed in the agent program's folder, after the program has ended."""

    command: str  # a line of bash; the last line of its output is the reward
    files: Tree  # written into the folder before, because the agent program may have changed files with these paths
    threshold: float  # minimum reward at which an episode counts as won


class AgentEpisode:
    """A running episode of an agent program, which has just started. ``place`` begins error messages."""

    def __init__(self, program: Program, sandbox: Bubblewrap, scoring: Scoring, form: Format, place: str) -> None:
        self.program, self.sandbox, self.scoring = program, sandbox, scoring
        self.form, self.place = form, place
        self.number = 0  # number of replies so far
        self._asked: Asked | None = None

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._asked.conversation.tools if self._asked else ()

    def opening(self) -> list[Message]:
        """Waits for the agent program's first request and returns its messages."""
        if self._asked is None:
            self._asked = self.program.desk.next()
            if self._asked is None:
                self._ended()
                raise EnvironmentFault(
                    f"{self.place}: the agent program ended ({self._output()}) before it requested a reply from the "
                    "policy; it must send its requests to OPENAI_BASE_URL"
                )
        return list(self._asked.conversation.messages)

    def act(self, text: str) -> Step:
        """Answers the agent program's waiting request with the policy's reply and waits for the next request.

        The returned step holds the messages that the next request adds to the conversation, or all messages of the next
        request if it does not continue the conversation. If the program has ended, the step is the last one, and its
        reward is the score.
        """
        self.opening()
        asked = self._asked
        assert asked is not None  # the session only steps while a request waits
        before = asked.conversation
        reply = spoken(text, before.tools, self.form, self.number)
        self.number += 1
        taken = asked.answer(reply)
        following = self.program.desk.next()
        while not taken and following is not None and following.conversation == before:
            # The agent program disconnected and sent its request again. The repeated request gets this reply.
            taken = following.answer(reply)
            following = self.program.desk.next()
        if not taken and following is None:
            raise EnvironmentFault(
                f"{self.place}: the agent program ended ({self._output()}) while the policy's reply was being sampled"
            )
        self._asked = following
        return self._scored() if following is None else _step(before, reply, following.conversation)

    def close(self) -> None:
        self.program.close()

    def _ended(self) -> tuple[Any, Tree]:
        try:
            return self.program.result.result()
        except SandboxFault as error:
            raise EnvironmentFault(f"sandbox: {error}") from error

    def _output(self) -> str:
        outcome, _ = self._ended()
        how = f"stopped by the {outcome.stopped} limit" if outcome.stopped else f"exit status {outcome.status}"
        return f"{how}, output {outcome.output.strip()[-_SHOWN:]!r}"

    def _scored(self) -> Step:
        outcome, tree = self._ended()
        info: dict[str, Any] = {"status": outcome.status, "stopped": outcome.stopped}
        try:
            limited = f"timeout -k 1 {SECONDS} bash -c {shlex.quote(self.scoring.command)}"
            scored, _ = self.sandbox.shell(limited, laid_over(tree, self.scoring.files))
        except SandboxFault as error:
            raise EnvironmentFault(f"sandbox: {error}") from error
        reward = _number(scored.output) if scored.ok else None
        if reward is None and outcome.ok:
            raise InputError(
                f"env.score: {self.place}: the command {self.scoring.command.splitlines()[-1]!r} must exit with status "
                f"0 and print a number as its last line, but it gave exit status {scored.status} and output "
                f"{scored.output.strip()[-_SHOWN:]!r}. The agent program had ended with {self._output()}. Correct "
                "env.score, or the program if it does not write what is scored"
            )
        if reward is None:  # the agent program failed before it wrote the files that are scored
            info["unscored"], reward = True, 0.0
        return Step("", reward, True, reward >= self.scoring.threshold, info)


def _step(before: Conversation, reply: Message, after: Conversation) -> Step:
    added = continuation(before, reply, after)
    text = "\n".join(str(message["content"]) for message in (after.messages if added is None else added))
    if added is None:
        return Step(text, conversation=after.messages, info={"anew": True})
    return Step(text, messages=added)


def _number(output: str) -> float | None:
    lines = output.strip().splitlines()
    try:
        value = float(lines[-1])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None


class AgentEnv(ReplayedEnv):
    """An environment in which the user's agent program asks the policy for replies.

    The program runs in the sandbox, in a folder that holds its code, the
    task's files and ``task.json``. The program's requests go to the gateway, an HTTP server of this process that
    answers with the policy's replies. The environment variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` hold the
    address of the gateway and the token of the episode. The program can reach no other network address. A request that
    does not continue the previous request begins a new conversation in the same rollout.

    ``conf/env/agent.yaml`` explains the arguments.
    """

    name = "agent"

    def __init__(
        self,
        command: str,
        tasks_file: str,
        score: str,
        code: str | None = None,
        threshold: float = 1.0,
        horizon: int = 30,
        format: str = "hermes",  # noqa: A002 - the configuration uses this name
        variables: Mapping[str, str] | None = None,
        together: int = 32,
        box: Box | None = None,
    ) -> None:
        for key, value in (("command", command), ("score", score)):
            if not value.strip():
                raise InputError(f"env.{key}: the command is empty; write a line of bash")
        self.command, self.score, self.threshold = command, score, threshold
        self.horizon, self.format = check_horizon(horizon), check_format(format)
        self.variables = dict(variables or {})
        if together < 1:
            raise ValueError(f"together: must be at least 1, got {together}")
        self.together = together
        self._tasks = read_tasks(Path(tasks_file), self.name)
        self._code: Tree = read_folder(Path(code), "env.code") if code else {}
        self._box = box or Box()
        self._first: dict[str, Opening] = {}  # task id -> messages and tools of the program's first request

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        check_tasks(split, count)
        tasks = list(self._tasks[split])
        random.Random(f"{split} {seed}").shuffle(tasks)
        return first_tasks(tasks, count, f"split {split} of env.tasks_file")

    def session(self, task: Task) -> ReplayedSession:
        """Opens a session of the task.

        The program's first request is kept for each task. If the request is known, the program starts only when the
        session takes its first action.
        """
        session = ReplayedSession(task, partial(self.open_episode, task), self.horizon, self._first.get(task.id))
        self._first.setdefault(task.id, (session.opening(), session.tools))
        session.form = self.format
        return session

    def open_episode(self, task: Task) -> AgentEpisode:
        sandbox = self._box.open()
        folder = laid_over(self._code, folder_of(task))
        program = Program(sandbox, self.command, folder, self.variables)
        files = laid_over(self._code, tree_of(task.data.get("hidden") or {}))
        scoring = Scoring(with_variables(self.score, self.variables), files, self.threshold)
        return AgentEpisode(program, sandbox, scoring, self.format, f"env=agent, task {task.id}")

    def ready(self) -> None:
        """Starts the agent program twice on one task and checks that both first requests are equal."""
        task = next(tasks[0] for tasks in self._tasks.values() if tasks)
        try:
            self.reset(task)
            ReplayedSession(task, partial(self.open_episode, task), self.horizon, self._first[task.id]).repeat().close()
        except EnvironmentFault as error:
            raise InputError(f"env.command: {error}") from error

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        raise InputError(
            f"task {task.id}: env=agent has no expert. Use a method that needs no expert (method=grpo, method=trace), "
            "or set data.file to episodes of a better model"
        )

    def accepts(self, session: ReplayedSession, action: str, expert: str) -> bool:
        """Returns whether ``action`` makes exactly the tool calls of the expert's reply ``expert``, in the same order.

        If ``expert`` makes no call, the two texts must be equal after whitespace is normalised.
        """
        calls = read_calls(expert, self.format, session.tools)
        return read_calls(action, self.format, session.tools) == calls if calls else same_text(action, expert)
