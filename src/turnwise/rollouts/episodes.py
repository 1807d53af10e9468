"""Caches environment episodes by task and actions, so that the actions before a state are not replayed every time."""

from __future__ import annotations

from dataclasses import dataclass, field

from turnwise.envs.environment import Environment, EnvironmentFault, Session
from turnwise.rollouts.environment_faults import guarded
from turnwise.types import Task


@dataclass(slots=True)
class Episodes:
    """Returns environment episodes (sessions) at given states of a task. A cache stores the episodes under the task and
    the actions that were taken.

    If the wanted episode is not in the cache, the cached episode whose actions are the longest prefix of the wanted
    actions is copied, and the copy takes the remaining actions.
    """

    environment: Environment
    seconds: float | None = None  # time limit of one call of the environment; see ``rollouts.environment_faults``
    kept: dict[tuple[str, str, tuple[str, ...]], Session] = field(default_factory=dict)
    _last: Session | None = None  # the only cached session that may hold a live episode, such as a server process

    def after(self, task: Task, actions: tuple[str, ...]) -> Session:
        """Returns a copy of the episode of ``task`` after ``actions``, for one rollout.

        If the environment fails, the cached episodes of this task are dropped and a fresh episode is tried.

        Raises:
            EnvironmentFault: the environment failed in the fresh episode too.
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
        """Returns the cached episode of ``task`` after ``actions``.

        If there is none, the cached episode whose actions are the longest prefix of ``actions`` is copied, and the
        copy takes the remaining actions.
        """
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

    Forks of the session keep their own episodes. The released episode can be restored by replaying its actions.
    """
    if release := getattr(session, "release", None):
        release()
