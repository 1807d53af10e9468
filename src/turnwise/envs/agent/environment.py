"""``env=agent``: a user's program as an environment. Each request that it makes for a reply is a turn of the policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from turnwise.envs.agent.episode import AgentEpisode, Scoring
from turnwise.envs.agent.gateway import Gateway
from turnwise.envs.agent.program import Program, with_variables
from turnwise.envs.agent.tasks import folder_of, hidden_of, read_tasks
from turnwise.envs.boxed import Box
from turnwise.envs.environment import (
    EnvironmentFault,
    Quality,
    check_horizon,
    check_split,
    check_task,
    same_text,
    tried,
)
from turnwise.envs.replay import Opening, ReplayedEnv, ReplayedSession
from turnwise.envs.tools import check_format, read_calls
from turnwise.errors import InputError
from turnwise.sandbox.tree import Tree, laid_over, read_folder
from turnwise.types import Task, Trajectory


class AgentEnv(ReplayedEnv):
    """See ``turnwise.envs.environment.Environment``.

    The program runs in the sandbox, in a folder with its code, the task's files and ``task.json``. It finds the gateway in
    ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, and nothing else of a network. Its requests need not continue one another: one
    that does not begins a conversation of its own in the same rollout.

    Args:
        command: a line of bash that runs the agent.
        code: a folder whose files lie in the agent's folder; None: there are none.
        tasks_file: of JSON lines (``envs.agent.tasks.Row``).
        score: a line of bash that runs in the folder that the agent left, where ``code`` and the task's hidden files are as they
            were; its last line of output is the reward. An agent that fails and leaves nothing to score has reward 0.
        threshold: reward from which an episode is won.
        horizon: turns of an episode.
        format: how the policy writes calls, and the gateway reads them.
        variables: further environment variables of the program.
        together: programs that run at once, as far as groups of rollouts are not larger.
        box: the sandbox, with its limits, interpreter and folders.

    Raises:
        InputError: a file or folder cannot be used.
        ValueError: there is no such format, or a number is below 1.
    """

    name = "agent"
    waits = True

    def __init__(
        self,
        command: str,
        tasks_file: str,
        score: str,
        code: str | None = None,
        threshold: float = 1.0,
        horizon: int = 30,
        format: str = "hermes",  # noqa: A002 - the configuration's word
        variables: Mapping[str, str] | None = None,
        together: int = 32,
        box: Box | None = None,
    ) -> None:
        for key, value in (("command", command), ("score", score)):
            if not value.strip():
                raise InputError(f"env.{key}: it is empty; write a line of bash")
        self.command, self.score, self.threshold = command, score, threshold
        self.horizon, self.format = check_horizon(horizon), check_format(format)
        self.variables = dict(variables or {})
        if together < 1:
            raise ValueError(f"together: at least one program runs, got {together}")
        self.together = together
        self._tasks = read_tasks(Path(tasks_file), self.name)
        self._code: Tree = read_folder(Path(code), "env.code") if code else {}
        self._box = box or Box()
        self._gateway = Gateway()
        self._first: dict[str, Opening] = {}  # by task: its first request

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Returns ``count`` different tasks of the file.

        Raises:
            InputError: the file has fewer.
            ValueError: there is no such split.
        """
        check_split(split)
        found = list(self._tasks[split])
        if count > len(found):
            raise InputError(
                f"env.tasks_file: {count} tasks of split {split} are needed, the file has {len(found)}; add some, or ask for "
                "fewer (states.count, eval.tasks)"
            )
        random.Random(f"{split} {seed}").shuffle(found)
        return found[:count]

    def reset(self, task: Task) -> ReplayedSession:
        """Opens a session. The program of a task that was opened before starts with its first action."""
        check_task(task, self.name)
        return self.begin(task)

    def begin(self, task: Task) -> ReplayedSession:
        session = ReplayedSession(task, partial(self.open_episode, task), self.horizon, self._first.get(task.id))
        self._first.setdefault(task.id, (session.opening(), session.tools))
        session.form = self.format
        return session

    def open_episode(self, task: Task) -> AgentEpisode:
        sandbox = self._box.open()
        folder = laid_over(self._code, folder_of(task))
        program = Program(self._gateway, sandbox, self.command, folder, self.variables)
        files = laid_over(self._code, hidden_of(task))
        scoring = Scoring(with_variables(self.score, self.variables), files, self.threshold)
        return AgentEpisode(program, sandbox, scoring, self.format, f"env=agent, task {task.id}")

    def prepare(self, tasks: Sequence[Task], on_done: Callable[[int], None]) -> None:
        """Starts the agent on tasks whose first requests are not known yet, several at once.

        Raises:
            EnvironmentFault: it ends before it asks for a reply.
        """
        new = [task for task in tasks if task.id not in self._first]
        with ThreadPoolExecutor(max(1, min(self.together, len(new))), thread_name_prefix="openings") as pool:
            for _ in pool.map(lambda task: tried(lambda: self.begin(task)).close(), new):
                on_done(1)

    def ready(self) -> None:
        """Starts the agent on a task, twice.

        Raises:
            InputError: it ends before it asks for a reply, or begins otherwise the second time.
            NoSandboxError: this machine has no sandbox.
        """
        task = next(tasks[0] for tasks in self._tasks.values() if tasks)
        try:
            self.begin(task)
            ReplayedSession(task, partial(self.open_episode, task), self.horizon, self._first[task.id]).repeat()
        except EnvironmentFault as error:
            raise InputError(f"env.command: {error}") from error

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """Raises an ``InputError``: nobody knows a good episode of a user's agent."""
        raise InputError(
            f"task {task.id}: env=agent has no expert. Use a method that needs none (method=grpo, method=trace), or give "
            "episodes of a better model with data.file"
        )

    def accepts(self, session: ReplayedSession, action: str, expert: str) -> bool:
        """Whether both make the same calls or, where the expert makes none, say the same."""
        calls = read_calls(expert, self.format, session.tools)
        return read_calls(action, self.format, session.tools) == calls if calls else same_text(action, expert)

    def same(self, action: str, expert: str) -> bool:
        return same_text(action, expert)
