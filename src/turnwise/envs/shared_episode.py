"""Lets a session and its forks share one running episode of an external package that cannot copy episodes.

The session or fork that acts first keeps the episode.
"""

from __future__ import annotations

import threading
from typing import Protocol

from turnwise.envs.environment import Step
from turnwise.types import Message


class Episode(Protocol):
    """A running episode of an external package.

    An episode may have these further attributes: ``admissible()``, which returns a list of the possible actions;
    ``close()``, which may be called twice; ``tools``, the tool definitions for the chat template; and ``form``, the
    format of the tool calls.
    """

    def opening(self) -> list[Message]:
        """Returns the messages that the policy reads before its first action."""
        ...

    def act(self, text: str) -> Step:
        """Applies a reply of the policy. A reply that cannot be parsed changes nothing.

        The session counts the turns, so the episode need not count them.

        Raises:
            EnvironmentFault: the package failed for a reason other than the action.
        """
        ...


class Live:
    """A running episode together with its position, the actions taken so far.

    Args:
        episode: an episode that was just opened.
        place: the object that holds the actions. Only a session whose position is this object (compared by identity)
            may use the episode.
    """

    def __init__(self, episode: Episode, place: object) -> None:
        self.episode = episode
        self._place: object = place  # None while a session uses the episode, and after it was closed
        self._user: object = None  # the session that uses the episode
        self._closed = False
        self._lock = threading.Lock()

    def claim(self, place: object, user: object) -> bool:
        """Reserves the episode for the session ``user``, whose position is ``place``. Returns whether this succeeded.

        Nothing is reserved if the episode is at another position, is in use or was closed.
        """
        with self._lock:
            if self._place is not place:
                return False
            self._place, self._user = None, user
            return True

    def leave(self, place: object) -> None:
        """Ends a reservation. The episode is now at the position ``place``, unless it was closed meanwhile."""
        with self._lock:
            self._user = None
            self._place = None if self._closed else place

    def used_by(self, user: object) -> bool:
        """Returns whether the session ``user`` has reserved the episode: during its step, and after a failed step."""
        with self._lock:
            return self._user is user

    def close(self) -> None:
        """Closes the episode, if it has a ``close`` method. No session can use the episode afterwards."""
        with self._lock:
            self._closed, self._place = True, None
        if close := getattr(self.episode, "close", None):
            close()

    def __del__(self) -> None:
        self.close()
