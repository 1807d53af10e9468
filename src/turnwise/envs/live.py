"""A live episode of a package that cannot copy one: forks of a session share it until one of them acts."""

from __future__ import annotations

import threading
from typing import Protocol

from turnwise.envs.environment import Step
from turnwise.types import Message


class Episode(Protocol):
    """A live episode of the package.

    It may have ``admissible() -> list[str]``, ``close()``, which may be called twice, ``tools``, definitions for the chat
    template, and ``form``, the format of its calls.
    """

    def opening(self) -> list[Message]:
        """Returns the messages before the first action."""
        ...

    def act(self, text: str) -> Step:
        """Applies the policy's text; one that does not parse is a no-op. It need not count turns.

        Raises:
            EnvironmentFault: the package failed, and not the action.
        """
        ...


class Live:
    """An episode and the place where it stands.

    Args:
        episode: that was just opened.
        place: the actions taken, by identity, of the sessions that it may serve.
    """

    def __init__(self, episode: Episode, place: object) -> None:
        self.episode = episode
        self._place: object = place  # None while a session uses it, and after it was closed
        self._user: object = None  # which session that is
        self._closed = False
        self._lock = threading.Lock()

    def claim(self, place: object, user: object) -> bool:
        """Takes the episode for a session at ``place``; false where it stands elsewhere, is in use, or was closed."""
        with self._lock:
            if self._place is not place:
                return False
            self._place, self._user = None, user
            return True

    def leave(self, place: object) -> None:
        """Gives the episode back, which stands at ``place`` now. One that was closed meanwhile serves nobody."""
        with self._lock:
            self._user = None
            self._place = None if self._closed else place

    def used_by(self, user: object) -> bool:
        """Whether this session's own step is under way, or failed."""
        with self._lock:
            return self._user is user

    def close(self) -> None:
        """Closes the episode, where it can be closed."""
        with self._lock:
            self._closed, self._place = True, None
        if close := getattr(self.episode, "close", None):
            close()

    def __del__(self) -> None:
        self.close()
