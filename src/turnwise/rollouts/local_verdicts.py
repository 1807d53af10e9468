"""Judges single actions without a step of the environment, as in PivotRL's local rollouts (arXiv:2603.21383)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from turnwise.envs.environment import environment_of
from turnwise.rollouts.demonstrated_reply import Anchored
from turnwise.rollouts.environment_faults import guarded
from turnwise.rollouts.episodes import Episodes
from turnwise.types import State, Turn


class Verdict(NamedTuple):
    """The two verdicts on an action of the policy at a state with a demonstrated action."""

    functional: bool  # the action is as good as the demonstrated action (PivotRL Eq. 6)
    strict: bool  # the action equals the demonstrated action (PivotRL Eq. 2)


class Verifier(Protocol):
    """Judges single actions at states that have a demonstrated action. A verifier must be deterministic. Both verdicts
    on a truncated action must be False.
    """

    def __call__(self, state: State, turn: Turn) -> tuple[bool, bool]:
        """Returns the verdicts ``functional`` and ``strict`` (see :class:`Verdict`).

        Raises:
            EnvironmentFault: the environment failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class ByEnvironment:
    """Judges an action with the environment's methods ``accepts`` (verdict ``functional``) and ``same`` (verdict
    ``strict``). For a truncated action, both verdicts are False.
    """

    episodes: Episodes

    def __call__(self, state: State, turn: Turn) -> tuple[bool, bool]:
        assert state.expert is not None
        if turn.truncated:
            return False, False
        session = self.episodes.after(state.task, state.actions)
        environment = environment_of(self.episodes.environment, state.task)
        with guarded(self.episodes.seconds):
            accepted = environment.accepts(session, turn.text, state.expert)
            return accepted, environment.same(turn.text, state.expert)


@dataclass(slots=True)
class Verdicts:
    """Judges actions and caches the verdicts, because many samples at one state are equal. ``dialogues`` is the
    verifier for replies in dialogues without an environment.
    """

    episodes: Episodes
    dialogues: Verifier = field(default_factory=Anchored)
    kept: dict[tuple[str, str, bool], Verdict] = field(default_factory=dict)

    def judge(self, state: State, turn: Turn) -> None:
        """Writes the verdicts ``functional`` and ``strict`` (0.0 or 1.0) into ``turn.info``.

        Raises:
            ValueError: the state has no demonstrated action.
            EnvironmentFault: the environment failed.
        """
        if state.expert is None:
            raise ValueError(
                f"state {state.id!r} has no demonstrated action to compare with: use states=expert_turns or pivots"
            )
        key = state.id, turn.text, turn.truncated
        verdict = self.kept.get(key)
        if verdict is None:
            verifier = ByEnvironment(self.episodes) if state.task.env else self.dialogues
            verdict = self.kept[key] = Verdict(*verifier(state, turn))
        turn.info["functional"], turn.info["strict"] = float(verdict.functional), float(verdict.strict)
