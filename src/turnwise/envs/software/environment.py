"""``env=software``: small repositories with one wrong line, repaired through tools and judged in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.envs.boxed import Box
from turnwise.envs.calls import Style, calls_of
from turnwise.envs.demonstration import by_quality, demonstration
from turnwise.envs.environment import Quality, check_horizon, check_task, same_text
from turnwise.envs.software import verifier
from turnwise.envs.software.experts import ClumsyExpert, GoodExpert, Slips
from turnwise.envs.software.session import TOOLS, SoftwareSession
from turnwise.envs.software.tasks import SHAPES, Level, make_task
from turnwise.types import Task, ToolCall, Trajectory


class SoftwareEnv:
    """See ``turnwise.envs.environment.Environment``.

    Args:
        level: tiny or full; how many modules and functions a repository has.
        horizon: turns of an episode.
        calls: how calls are written, ``short`` or ``hermes``. None: short at the tiny level.
        shown: characters of an observation. None: 400 at the tiny level, 2000 at full.
        verifier: ``effect``, ``call`` or ``name``; see ``software.verifier``. None: effect at the tiny level, name at full.
        slips: how often the clumsy expert errs.
        box: the sandbox; it opens with the first run of code.

    Raises:
        ValueError: an argument is out of its range.
    """

    name = "software"
    waits = True

    def __init__(
        self,
        level: Level = "tiny",
        horizon: int = 10,
        calls: Style | None = None,
        shown: int | None = None,
        verifier: verifier.Verifier | None = None,
        slips: Slips | None = None,
        box: Box | None = None,
    ) -> None:
        if level not in SHAPES:
            raise ValueError(f"level: tiny or full, got {level!r}")
        if verifier not in (None, "effect", "call", "name"):
            raise ValueError(f"verifier: effect, call or name, got {verifier!r}")
        if shown is not None and shown < 20:
            raise ValueError(f"shown: an observation has at least 20 characters, got {shown}")
        self.level: Level = level
        self.horizon = check_horizon(horizon)
        self.calls = calls or ("short" if level == "tiny" else "hermes")
        self._calls = calls_of(self.calls, TOOLS)
        self.shown = shown or (400 if level == "tiny" else 2000)
        self.verifier = verifier or ("effect" if level == "tiny" else "name")
        self.slips = slips or Slips()
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

    def reset(self, task: Task) -> SoftwareSession:
        """A fresh episode.

        Raises:
            ValueError: the task belongs to another environment, or its data is no repository.
        """
        check_task(task, self.name)
        return SoftwareSession(task, self._box, self._calls, self.horizon, self.shown)

    def demonstrate(self, task: Task, quality: Quality = "good", seed: int = 0) -> Trajectory:
        """An expert's episode: opening, then action and observation in turn, the last observation included.

        Raises:
            ValueError: the quality is neither good nor clumsy.
            NoSandboxError: nothing here can hold the code.
            EnvironmentFault: the sandbox failed.
        """
        session = self.reset(task)
        expert = by_quality(quality, lambda: GoodExpert(session, seed), lambda: ClumsyExpert(session, seed, self.slips))
        return demonstration(session, lambda: self.action(expert.call(session)), quality, seed)

    def action(self, call: ToolCall) -> str:
        """A call as a policy writes it."""
        return self._calls.write(call)

    def accepts(self, session: SoftwareSession, action: str, expert: str) -> bool:
        """The functional verifier; see ``software.verifier``.

        Raises:
            EnvironmentFault: the sandbox failed.
        """
        if self.verifier == "effect":
            return verifier.effective(session, action)
        return verifier.alike(session, action, expert, whole=self.verifier == "call")

    def same(self, action: str, expert: str) -> bool:
        """Exact match after whitespace is normalised (PivotRL Eq. 2)."""
        return same_text(action, expert)
