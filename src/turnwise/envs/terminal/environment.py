"""``env=terminal``: chores in a folder, through real bash in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.envs.boxed import Box
from turnwise.envs.calls import Style
from turnwise.envs.environment import Level
from turnwise.envs.terminal import verifier
from turnwise.envs.terminal.experts import ClumsyExpert, GoodExpert, Slips
from turnwise.envs.terminal.goal import Goal
from turnwise.envs.terminal.session import TOOLS, TerminalSession
from turnwise.envs.terminal.tasks import make_task
from turnwise.envs.workspace import WorkspaceEnv
from turnwise.types import Task

_SHOWN: Mapping[Level, int] = {"tiny": 200, "full": 2000}  # characters of an observation


class TerminalEnv(WorkspaceEnv[TerminalSession]):
    """See ``turnwise.envs.environment.Environment``.

    Args:
        level: tiny or full; how large folders and requests are.
        horizon: turns of an episode.
        calls: how calls are written, ``short`` (the text is the command) or ``hermes``. None: short at the tiny level.
        shown: characters of an observation. None: 200 at the tiny level, 2000 at full.
        verifier: ``effect`` or ``similarity``; see ``terminal.verifier``.
        threshold: of ``similarity``.
        judge: decides, below the threshold, whether two commands are equivalent; None: they are not.
        slips: probabilities of the clumsy expert.
        box: the sandbox; it opens with the first command.

    Raises:
        ValueError: an argument is out of its range.
    """

    name = "terminal"
    good, clumsy = GoodExpert, ClumsyExpert

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
        if verifier not in ("effect", "similarity"):
            raise ValueError(f"verifier: effect or similarity, got {verifier!r}")
        if judge is not None and not callable(judge):
            raise ValueError(f"judge: a part with a _target_ of two commands, or null, got {judge!r}")
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold: a similarity lies in (0, 1], got {threshold}")
        super().__init__(level, horizon, calls, TOOLS, True, shown, _SHOWN, slips or Slips(), box)
        self.verifier, self.threshold, self._judge = verifier, threshold, judge

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [make_task(self.level, split, seed, index) for index in range(count)]

    def begin(self, task: Task) -> TerminalSession:
        return TerminalSession(task, Goal(task.data), self._box, self._calls, self.horizon, self.shown)

    def accepts(self, session: TerminalSession, action: str, expert: str) -> bool:
        if self.verifier == "effect":
            return verifier.effective(session, action)
        return verifier.similar(session, action, expert, self.threshold, self._judge)
