"""Single actions judged where they are made, without a step of the world: PivotRL's local rollouts (arXiv:2603.21383)."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.envs.base import world_of
from turnwise.rollouts.episodes import Episodes
from turnwise.rollouts.guard import guarded
from turnwise.types import State, Turn


@dataclass(slots=True)
class Verdicts:
    """What a world's two verifiers say of actions: they are deterministic, and most samples of a state are alike.

    Args:
        episodes: of the run's world, in which the actions would be taken.
    """

    episodes: Episodes
    kept: dict[tuple[str, str], tuple[bool, bool]] = field(default_factory=dict)

    def judge(self, state: State, turn: Turn) -> None:
        """Write ``functional`` (Eq. 6) and ``strict`` (Eq. 2) into the turn's ``info``.

        A dialogue from a file names no world that could have one: its actions are left to a reward that compares texts.

        Raises:
            ValueError: the state has no demonstrated action.
            EnvironmentFault: the world failed.
        """
        if state.expert is None:
            raise ValueError(
                f"state {state.id!r} has no demonstrated action to judge by: use states=expert_turns or pivots"
            )
        if not state.task.env:
            return
        verdict = self.kept.get((state.id, turn.text))
        if verdict is None:
            session = self.episodes.after(state.task, state.actions)
            world = world_of(self.episodes.environment, state.task)
            with guarded(self.episodes.seconds):
                verdict = world.accepts(session, turn.text, state.expert), world.same(turn.text, state.expert)
            self.kept[state.id, turn.text] = verdict
        turn.info["functional"], turn.info["strict"] = float(verdict[0]), float(verdict[1])
