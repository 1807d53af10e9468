"""``env=software``: small repositories with one wrong line, repaired through tools and judged in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnwise.envs.boxed import Box
from turnwise.envs.calls import Style
from turnwise.envs.environment import Level
from turnwise.envs.software import verifier
from turnwise.envs.software.experts import ClumsyExpert, GoodExpert, Slips
from turnwise.envs.software.session import TOOLS, SoftwareSession
from turnwise.envs.software.tasks import make_task
from turnwise.envs.workspace import WorkspaceEnv
from turnwise.types import Task

_SHOWN: Mapping[Level, int] = {"tiny": 400, "full": 2000}  # characters of an observation


class SoftwareEnv(WorkspaceEnv[SoftwareSession]):
    """See ``turnwise.envs.environment.Environment``.

    Args:
        level: tiny or full; how many modules and functions a repository has.
        horizon: turns of an episode.
        calls: how calls are written, ``short`` or ``hermes``. None: short at the tiny level.
        shown: characters of an observation. None: 400 at the tiny level, 2000 at full.
        verifier: ``effect``, ``call`` or ``name``; see ``software.verifier``. None: effect at the tiny level, name at full.
        slips: probabilities of the clumsy expert.
        box: the sandbox; it opens with the first run of code.

    Raises:
        ValueError: an argument is out of its range.
    """

    name = "software"
    good, clumsy = GoodExpert, ClumsyExpert

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
        if verifier not in (None, "effect", "call", "name"):
            raise ValueError(f"verifier: effect, call or name, got {verifier!r}")
        super().__init__(level, horizon, calls, TOOLS, False, shown, _SHOWN, slips or Slips(), box)
        self.verifier = verifier or ("effect" if level == "tiny" else "name")

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [make_task(self.level, split, seed, index) for index in range(count)]

    def begin(self, task: Task) -> SoftwareSession:
        return SoftwareSession(task, self._box, self._calls, self.horizon, self.shown)

    def accepts(self, session: SoftwareSession, action: str, expert: str) -> bool:
        if self.verifier == "effect":
            return verifier.effective(session, action)
        return verifier.alike(session, action, expert, whole=self.verifier == "call")
