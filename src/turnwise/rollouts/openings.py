"""Reads the first messages of tasks, from which the prompts of the first turns are made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from turnwise.env import TRIES, EnvironmentFault, tools_of, waits
from turnwise.rollouts.environment_steps import Answers, close, run_to_end
from turnwise.types import Message, Task

if TYPE_CHECKING:
    from turnwise.data.chat_tokens import ChatTokens


class Openings:
    """Returns the first messages of a task and their token ids. The results are cached.

    Args:
        environment: the environment, or a mixture of environments.
        chat: converts messages to tokens.
        threads: how many tasks are opened at the same time in an environment that waits for other processes. With 0,
            they are opened one after the other.
        seconds: time limit in seconds for opening a task. None: no limit.
    """

    def __init__(self, environment: Any, chat: ChatTokens, threads: int = 0, seconds: float | None = None) -> None:
        self.environment, self.chat, self.threads, self.seconds = environment, chat, threads, seconds
        self._known: dict[tuple[str, str], tuple[Sequence[Message], list[int]]] = {}

    def __call__(self, task: Task) -> tuple[Sequence[Message], list[int]]:
        """Returns the first messages of ``task`` and their token ids.

        Raises:
            EnvironmentFault: the task could not be opened in ``TRIES`` attempts. :meth:`read` raises this error too.
            ValueError: the environment has no such task.
        """
        self.read([task])
        return self._known[task.env, task.id]

    def read(self, tasks: Sequence[Task], on_done: Callable[[int], None] = lambda count: None) -> None:
        """Opens the tasks that were not opened before and stores their first messages.

        ``on_done`` is called with the number of tasks that have just been opened.
        """
        new = {(task.env, task.id): task for task in tasks if (task.env, task.id) not in self._known}
        on_done(len(tasks) - len(new))
        if new:
            run_to_end(self._read(list(new.values()), on_done))

    async def _read(self, tasks: Sequence[Task], on_done: Callable[[int], None]) -> None:
        together = self.environment.together or len(tasks)
        answers = Answers(min(self.threads, together, len(tasks)), self.seconds)
        waiting = [answers.threads > 0 and waits(self.environment, task) for task in tasks]
        begun = {
            place: asyncio.ensure_future(self._open(task, answers, True))
            for place, task in enumerate(tasks)
            if waiting[place]
        }
        try:
            for place, task in enumerate(tasks):
                try:
                    messages, tools = await (begun[place] if waiting[place] else self._open(task, answers, False))
                except EnvironmentFault as error:
                    raise EnvironmentFault(f"env={task.env}: task {task.id} cannot be opened: {error}") from error
                self._known[task.env, task.id] = messages, self.chat.prompt(messages, tools)
                on_done(1)
        finally:
            answers.close()

    async def _open(self, task: Task, answers: Answers, threaded: bool) -> tuple[Sequence[Message], Sequence[Any]]:
        opening = partial(answers.call, threaded, partial(self._opening, task), None, (ValueError,))
        for _ in range(TRIES - 1):
            with suppress(EnvironmentFault):
                return await opening()
        return await opening()

    def _opening(self, task: Task) -> tuple[Sequence[Message], Sequence[Any]]:
        session = self.environment.reset(task)
        try:
            return session.opening(), tools_of(session)
        finally:
            close(session)
