"""``env=terminal``: the policy does small file tasks (chores) in a folder, with real bash in the sandbox."""

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

_SHOWN: Mapping[Level, int] = {"tiny": 200, "full": 2000}  # default of ``shown`` for each level, in characters


class TerminalEnv(WorkspaceEnv[TerminalSession]):
    """An environment in which the policy does small file tasks with bash.

    It implements ``turnwise.envs.environment.Environment``.

    Args:
        level: ``tiny`` (3 or 4 files, 1 or 2 chores) or ``full`` (6 to 12 files, 2 or 3 chores).
        horizon: maximum number of turns of an episode.
        calls: the format of calls, ``short`` (the text is the command) or ``hermes``. None means short at the tiny
            level and hermes at the full level.
        shown: maximum length of an observation in characters. None means 200 at the tiny level and 2000 at the full
            level.
        verifier: the functional verifier (``terminal.verifier``). ``effect`` runs the policy's command and accepts it
            if it makes progress. ``similarity`` compares the text of the policy's command with the expert's command.
        threshold: minimum similarity, in (0, 1], at which the verifier ``similarity`` accepts a command.
        judge: a function that decides whether two commands are equivalent if the similarity is below the threshold.
            None means that they are not equivalent.
        slips: probabilities of the mistakes of the clumsy scripted expert.
        box: the sandbox, which starts in :meth:`ready` or at the first command.

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
            raise ValueError(f"verifier: must be effect or similarity, got {verifier!r}")
        if judge is not None and not callable(judge):
            raise ValueError(
                f"judge: must be null or a function (set by _target_) that compares two commands, got {judge!r}"
            )
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold: must be in (0, 1], got {threshold}")
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
