"""``env=agent``: an environment in which each request of the user's agent program is one turn of the policy."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from turnwise.envs.agent.episode import AgentEpisode, Scoring
from turnwise.envs.agent.program import Program, with_variables
from turnwise.envs.agent.tasks import folder_of, hidden_of, read_tasks
from turnwise.envs.boxed import Box
from turnwise.envs.environment import EnvironmentFault, Quality, check_horizon, check_tasks, same_text
from turnwise.envs.replay import Opening, ReplayedEnv, ReplayedSession
from turnwise.envs.tools import check_format, read_calls
from turnwise.errors import InputError
from turnwise.sandbox.folder_value import Tree, laid_over, read_folder
from turnwise.types import Task, Trajectory


class AgentEnv(ReplayedEnv):
    """An environment in which the user's agent program asks the policy for replies.

    See ``turnwise.envs.environment.Environment``. The program runs in the sandbox, in a folder that holds its code, the
    task's files and ``task.json``. The program's requests go to the gateway, an HTTP server of this process that
    answers with the policy's replies. The environment variables ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` hold the
    address of the gateway and the token of the episode. The program can reach no other network address. A request that
    does not continue the previous request begins a new conversation in the same rollout.

    Args:
        command: a line of bash that runs the agent program.
        code: path of a folder whose files are copied into the program's folder. None means that no files are copied.
        tasks_file: a file of JSON lines (``envs.agent.tasks.Row``).
        score: a line of bash whose last line of output is the reward. After the program has ended, the files of
            ``code`` and the task's hidden files are written into the program's folder, and then the line runs in this
            folder. If the program failed and no reward can be computed, the reward is 0.
        threshold: minimum reward at which an episode counts as won.
        horizon: maximum number of turns of an episode.
        format: the format in which the policy writes calls.
        variables: additional environment variables of the program.
        together: maximum number of agent programs that run at once. The rollouts of a larger group still run at once.
        box: the sandbox. It defines the resource limits, the Python interpreter and the readable folders.

    Raises:
        InputError: a file or folder cannot be used.
        ValueError: there is no format of this name, or a number is below 1.
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
        """Returns ``count`` different tasks of a split, drawn from the tasks file.

        Raises:
            InputError: the file has fewer than ``count`` tasks of the split.
            ValueError: there is no split of this name, or the count is negative.
        """
        check_tasks(split, count)
        found = list(self._tasks[split])
        if count > len(found):
            raise InputError(
                f"env.tasks_file: {count} tasks of split {split} are needed, but the file has {len(found)}; add tasks "
                "to the file, or lower states.count or eval.tasks"
            )
        random.Random(f"{split} {seed}").shuffle(found)
        return found[:count]

    def begin(self, task: Task) -> ReplayedSession:
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
        files = laid_over(self._code, hidden_of(task))
        scoring = Scoring(with_variables(self.score, self.variables), files, self.threshold)
        return AgentEpisode(program, sandbox, scoring, self.format, f"env=agent, task {task.id}")

    def ready(self) -> None:
        """Starts the agent program twice on one task and checks that both first requests are equal.

        Raises:
            InputError: the program ended before it asked for a reply, or the two requests differ.
            NoSandboxError: no sandbox works on this machine.
        """
        task = next(tasks[0] for tasks in self._tasks.values() if tasks)
        try:
            self.begin(task)
            ReplayedSession(task, partial(self.open_episode, task), self.horizon, self._first[task.id]).repeat()
        except EnvironmentFault as error:
            raise InputError(f"env.command: {error}") from error

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """Raises an ``InputError``, because this environment has no expert."""
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
