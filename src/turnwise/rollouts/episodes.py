"""Caches environment episodes by task and actions, so that the actions before a state are not replayed every time."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.envs.environment import Environment, EnvironmentFault, Session
from turnwise.rollouts.environment_faults import guarded
from turnwise.types import Task


@dataclass(slots=True)
class Episodes:
    """Returns environment episodes (sessions) of a task after given actions.

    If the wanted episode is not in the cache, the cached episode whose actions are the longest prefix of the wanted
    actions is copied, and the copy takes the remaining actions.
    """

    environment: Environment
    seconds: float | None = None  # time limit of one call of the environment; see ``rollouts.environment_faults``
    # the cache: (task.env, task.id, actions) -> episode
    kept: dict[tuple[str, str, tuple[str, ...]], Session] = field(default_factory=dict)
    _last: Session | None = None  # the only cached session that may hold a live episode, such as a server process

    def after(self, task: Task, actions: tuple[str, ...]) -> Session:
        """Returns a copy of the episode of ``task`` after ``actions``, for one rollout.

        If the environment fails, the cached episodes of this task are dropped and a new episode is begun.

        Raises:
            EnvironmentFault: the environment failed in the new episode too.
            ValueError: the environment has no such task.
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
        """Returns the episode of ``task`` after ``actions``, from the cache or newly made."""
        done = 0
        session = None
        for done in range(len(actions), -1, -1):
            session = self.kept.get((task.env, task.id, actions[:done]))
            if session is not None:
                break
        if session is not self._last:
            _release(self._last)
        if session is None:
            with guarded(self.seconds, passing=(ValueError,)):
                session, done = self.environment.reset(task), 0
        for place in range(done, len(actions)):
            earlier, session = session, self._forked(session)
            _release(earlier)
            with guarded(self.seconds):
                session.step(actions[place])
            self.kept[task.env, task.id, actions[: place + 1]] = session
        self._last = session
        return session


def _release(session: Session | None) -> None:
    """Lets a session give up its live episode, such as a server process, if the session has a method ``release``.

    Forks of the session keep their own episodes. The session can restore its episode by replaying the actions.
    """
    if release := getattr(session, "release", None):
        release()
