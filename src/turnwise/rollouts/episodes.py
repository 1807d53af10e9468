"""Live episodes by what was done in them, so that no action is played twice to come to the same place."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.envs.environment import Environment, EnvironmentFault, Session
from turnwise.rollouts.guard import guarded
from turnwise.types import Task


@dataclass(slots=True)
class Episodes:
    """Sessions of the run's world, kept by task and actions: the turns of one trajectory stand on each other."""

    environment: Environment
    seconds: float | None = None  # that a world may take for one thing; see ``rollouts.guard``
    kept: dict[tuple[str, str, tuple[str, ...]], Session] = field(default_factory=dict)

    def after(self, task: Task, actions: tuple[str, ...]) -> Session:
        """The episode after these actions, for one rollout. Kept ones that fail, with their worker say, are given up.

        Raises:
            EnvironmentFault: the world failed in a fresh episode too.
            ValueError: the task is none of this world's.
        """
        try:
            return self._forked(self._stand(task, actions))
        except EnvironmentFault:
            self.kept = {place: session for place, session in self.kept.items() if place[:2] != (task.env, task.id)}
            return self._forked(self._stand(task, actions))

    def _forked(self, session: Session) -> Session:
        with guarded(self.seconds):
            return session.fork()

    def _stand(self, task: Task, actions: tuple[str, ...]) -> Session:
        """The kept episode after these actions, played on from the longest kept beginning."""
        done = 0
        session = None
        for done in range(len(actions), -1, -1):
            session = self.kept.get((task.env, task.id, actions[:done]))
            if session is not None:
                break
        if session is None:
            with guarded(self.seconds, passing=(ValueError,)):
                session, done = self.environment.reset(task), 0
        for place in range(done, len(actions)):
            session = self._forked(session)
            with guarded(self.seconds):
                session.step(actions[place])
            self.kept[task.env, task.id, actions[: place + 1]] = session
        return session
