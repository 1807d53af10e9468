"""``env=mcp``: tasks that the policy solves with tools of Model Context Protocol (MCP) servers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnwise.data.match_calls import equivalent
from turnwise.data.toolcalls import ToolCallError, write_calls
from turnwise.envs.caches import LastTasks
from turnwise.envs.environment import Quality, check_horizon, check_tasks, first_tasks
from turnwise.envs.experts import Chances, check_quality, played
from turnwise.envs.mcp import example
from turnwise.envs.mcp.episode import McpEpisode, read_reply
from turnwise.envs.mcp.problem import Problem, problem_of, read_tasks
from turnwise.envs.mcp.servers import Servers, server_of
from turnwise.envs.replay import ReplayedEnv, ReplayedSession
from turnwise.envs.tool_environment import check_shown
from turnwise.envs.tool_messages import check_format
from turnwise.errors import InputError
from turnwise.types import Task, ToolCall, Trajectory

_KEPT = 256  # number of tasks whose parsed data is kept in memory


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """For each kind of mistake, the probability that the clumsy scripted expert makes it before a correct call.

    A mistake does not change the state of a server, because the wrong call is refused before a server sees it.
    """

    unknown: float = 0.1  # makes the call with a tool name that does not exist
    missing: float = 0.1  # makes the call without one of the required arguments


class McpEnv(ReplayedEnv):
    """An environment in which the policy solves tasks with the tools of MCP servers.

    It implements ``turnwise.envs.environment.Environment``.

    Args:
        file: a file of tasks as JSON lines (``mcp/problem.py``). None means generated tasks for the shipped example
            server.
        servers: name of a server -> its settings, such as its command or address (``mcp/servers.py``). A server whose
            settings are None is not used.
        horizon: maximum number of turns of an episode.
        format: the format in which the policy writes tool calls.
        closing: the expert's last reply in tasks that name no right answer.
        shown: maximum number of characters of a tool's answer that the policy sees.
        timeout: time limit in seconds of a server's start and of each of its answers.
        together: maximum number of rollouts that run at once, each with its own servers; None means no limit.
        mistakes: probabilities of the mistakes of the clumsy scripted expert.

    Raises:
        ValueError: a number is too small, the format is unknown, or a server's settings cannot be used.
        InputError: the file cannot be read or holds no tasks.
    """

    name = "mcp"
    waits = True

    def __init__(
        self,
        servers: Mapping[str, Mapping[str, Any] | None],
        file: str | Path | None = None,
        horizon: int = 10,
        format: str = "hermes",  # noqa: A002 - the configuration uses this name
        system: str | None = None,
        closing: str = "Done.",
        shown: int = 2000,
        timeout: float = 60.0,
        together: int | None = 64,
        mistakes: Mistakes | None = None,
    ) -> None:
        check_shown(shown)
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout} s; it must be above 0")
        named = {name: server_of(name, given) for name, given in servers.items() if given is not None}
        if not named:
            raise ValueError("servers: give at least one, such as +env.servers.mine.command=[python,server.py]")
        if together is not None and together < 1:
            raise ValueError(f"together: must be at least 1, got {together}")
        self.together = together
        self.horizon = check_horizon(horizon)
        self.format = check_format(format)
        self.system, self.closing, self.shown = system or "", closing, shown
        self.mistakes = mistakes or Mistakes()
        self.reached = repr(named)
        self.file = None if file is None else str(file)
        self._read = None if file is None else read_tasks(file, self.name)
        self._servers = Servers(named, timeout)
        self._problems = LastTasks(lambda task: problem_of(task.data, f"task {task.id}"), _KEPT)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Returns the first ``count`` tasks of a split in the file. Without a file, returns generated tasks.

        Raises:
            ValueError: there is no split of this name, or the count is negative.
            InputError: the file has fewer than ``count`` tasks of this split.
        """
        check_tasks(split, count)
        if self._read is None:
            return example.tasks(self.name, split, count, seed)
        return first_tasks(self._read.get(split, []), count, f"split {split} of {self.file}")

    def open_episode(self, task: Task) -> McpEpisode:
        problem, where = self._problems(task), f"task {task.id}"
        return McpEpisode(problem, self._servers, self._servers.shown(), self.format, self.system, self.shown, where)

    def trial(self, session: ReplayedSession, rng: random.Random) -> str:
        """Returns a reply with the next tool call of the task's solution, or the closing reply after the last call.

        :meth:`unforkable` uses these replies to test whether the servers answer the same calls differently.
        """
        calls = self._problems(session.task).calls or ()
        turn = len(session.taken)
        return write_calls([calls[turn].made()], self.format) if turn < len(calls) else self.closing

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """Runs a scripted expert on the task and returns its episode as a trajectory.

        The expert makes the calls that the task lists as its solution, and then answers. The clumsy expert makes
        mistakes before some of these calls.

        Raises:
            ValueError: the quality is neither good nor clumsy.
            InputError: the task does not say which calls solve it.
            EnvironmentFault: a server failed.
        """
        session = self.reset(task)
        problem = self._problems(task)
        if problem.calls is None:
            raise InputError(
                f"task {task.id}: its record lists no tool calls (`calls`), so no demonstration can be generated; set "
                "data.file to trajectories, or choose a method that needs no demonstrations (method=grpo, method=trace)"
            )
        rng = random.Random(f"{seed}/{task.id}") if check_quality(quality) == "clumsy" else None
        return played(session, self._replies(problem, session, rng), self.format, quality, seed)

    def accepts(self, session: ReplayedSession, action: str, expert: str) -> bool:
        """Returns whether ``action`` makes the tool calls of the expert's reply (PivotRL, arXiv:2603.21383, App. A.2).

        If neither reply makes a call, ``action`` is accepted if it gives the right answer of the task.
        """
        try:
            made, shown = (read_reply(text, self.format, self._servers.shown()) for text in (action, expert))
        except ToolCallError:
            return False
        if made.calls or shown.calls:
            return equivalent(made.calls, shown.calls, self._servers.shown())
        return self._problems(session.task).answered(made.content)

    def close(self) -> None:
        """Ends the servers that no episode is using, and the servers that episodes share."""
        self._servers.close()

    def _replies(
        self, problem: Problem, session: ReplayedSession, rng: random.Random | None = None
    ) -> Iterator[tuple[Sequence[ToolCall], str]]:
        calls = [call.made() for call in problem.calls or ()]
        for place, call in enumerate(calls):
            spare = self.horizon - len(session.taken) > len(calls) + 1 - place
            if rng is not None and spare and (wrong := self._mistake(call, rng)) is not None:
                yield [wrong], ""
            yield [call], ""
        yield [], next(iter(problem.answers), self.closing)

    def _mistake(self, call: ToolCall, rng: random.Random) -> ToolCall | None:
        drawn = self.mistakes.drawn(rng.random())
        if drawn == "unknown":
            return ToolCall(f"{call.name}_all", call.arguments)
        tools = (each["function"] for each in self._servers.shown() if each["function"]["name"] == call.name)
        required = [
            name for tool in tools for name in tool["parameters"].get("required") or () if name in call.arguments
        ]
        if drawn == "missing" and required:
            left_out = rng.choice(required)
            return ToolCall(call.name, {name: value for name, value in call.arguments.items() if name != left_out})
        return None
