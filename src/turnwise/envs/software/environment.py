"""``env=software``: the policy uses tools to repair small code repositories in which one line is wrong."""

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

_SHOWN: Mapping[Level, int] = {"tiny": 400, "full": 2000}  # default of ``shown`` for each level, in characters


class SoftwareEnv(WorkspaceEnv[SoftwareSession]):
    """An environment in which the policy repairs a code repository. Test cases, which run in the sandbox, judge it.

    It implements ``turnwise.envs.environment.Environment``.

    Args:
        level: ``tiny`` (2 modules with 1 function each) or ``full`` (4 modules with 3 functions each).
        horizon: maximum number of turns of an episode.
        calls: the format of calls, ``short`` or ``hermes``. None means short at the tiny level and hermes at the full
            level.
        shown: maximum length of an observation in characters. None means 400 at the tiny level and 2000 at the full
            level.
        verifier: the functional verifier (``software.verifier``). ``effect`` accepts calls that bring the repair
            forward. ``call`` accepts only the expert's call. ``name`` accepts calls of the tool that the expert calls.
            None means effect at the tiny level and name at the full level.
        slips: probabilities of the mistakes of the clumsy scripted expert.
        box: the sandbox, which starts in :meth:`ready` or when it first runs code.

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
            raise ValueError(f"verifier: must be effect, call or name, got {verifier!r}")
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
