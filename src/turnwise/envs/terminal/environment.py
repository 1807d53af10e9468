"""``env=terminal``: chores in a folder, through real bash in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.envs.boxed import Box
from turnwise.envs.calls import Style, calls_of
from turnwise.envs.demonstration import by_quality, demonstration
from turnwise.envs.environment import Quality, check_horizon, check_task, same_text
from turnwise.envs.terminal import verifier
from turnwise.envs.terminal.experts import ClumsyExpert, GoodExpert, Slips
from turnwise.envs.terminal.goal import Goal
from turnwise.envs.terminal.session import TOOLS, TerminalSession
from turnwise.envs.terminal.tasks import SIZES, Level, make_task
from turnwise.types import Task, ToolCall, Trajectory


class TerminalEnv:
    """See ``turnwise.envs.environment.Environment``.

    Args:
        level: tiny or full; how large folders and requests are.
        horizon: turns of an episode.
        calls: how calls are written, ``short`` (the text is the command) or ``hermes``. None: short at the tiny level.
        shown: characters of an observation. None: 200 at the tiny level, 2000 at full.
        verifier: ``effect`` or ``similarity``; see ``terminal.verifier``.
        threshold: of ``similarity``.
        judge: decides, below the threshold, whether two commands are equivalent; None: they are not.
        slips: how often the clumsy expert errs.
        box: the sandbox; it opens with the first command.

    Raises:
        ValueError: an argument is out of its range.
    """

    name = "terminal"
    waits = True

    def __init__(
        self,
        level: Level = "tiny",
        horizon: int = 10,
        calls: Style | None = None,
        shown: int | None = None,
        verifier: verifier.Verifier = "effect",
        threshold: float = 0.8,
        judge: verifier.Judge | None = None,
        slips: Slips | None = None,
        box: Box | None = None,
    ) -> None:
        if level not in SIZES:
            raise ValueError(f"level: tiny or full, got {level!r}")
        if verifier not in ("effect", "similarity"):
            raise ValueError(f"verifier: effect or similarity, got {verifier!r}")
        if shown is not None and shown < 20:
            raise ValueError(f"shown: an observation has at least 20 characters, got {shown}")
        if judge is not None and not callable(judge):
            raise ValueError(f"judge: a part with a _target_ of two commands, or null, got {judge!r}")
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold: a similarity lies in (0, 1], got {threshold}")
        self.level: Level = level
        self.horizon = check_horizon(horizon)
        self.calls = calls or ("short" if level == "tiny" else "hermes")
        self._calls = calls_of(self.calls, TOOLS, bare=True)
        self.shown = shown or (200 if level == "tiny" else 2000)
        self.verifier, self.threshold = verifier, threshold
        self.slips = slips or Slips()
        self._judge = judge
        self._box = box or Box()

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """``count`` tasks of a split; a longer list starts with the shorter one.

        Raises:
            ValueError: the split is not one of train, seen, unseen, or the count is negative.
        """
        if count < 0:
            raise ValueError(f"count: cannot draw {count} tasks")
        return [make_task(self.level, split, seed, index) for index in range(count)]

    def ready(self) -> None:
        """Raises NoSandboxError where nothing can hold a command."""
        self._box.open()

    def reset(self, task: Task) -> TerminalSession:
        """A fresh episode.

        Raises:
            ValueError: the task belongs to another environment, or its data is no terminal task.
        """
        check_task(task, self.name)
        return TerminalSession(task, Goal(task.data), self._box, self._calls, self.horizon, self.shown)

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """An expert's episode: opening, then action and observation in turn, the last observation included.

        Raises:
            ValueError: the quality is neither good nor clumsy.
            NoSandboxError: nothing here can hold the commands.
            EnvironmentFault: the sandbox failed.
        """
        session = self.reset(task)
        expert = by_quality(quality, lambda: GoodExpert(session, seed), lambda: ClumsyExpert(session, seed, self.slips))
        return demonstration(session, lambda: self.action(expert.command(session)), quality, seed)

    def action(self, command: str) -> str:
        """A command as a policy writes it."""
        return self._calls.write(ToolCall("bash", {"command": command}))

    def accepts(self, session: TerminalSession, action: str, expert: str) -> bool:
        """The functional verifier; see ``terminal.verifier``.

        Raises:
            EnvironmentFault: the sandbox failed.
        """
        if self.verifier == "effect":
            return verifier.effective(session, action)
        return verifier.similar(session, action, expert, self.threshold, self._judge)

    def same(self, action: str, expert: str) -> bool:
        """Exact match after whitespace is normalised (PivotRL Eq. 2)."""
        return same_text(action, expert)
