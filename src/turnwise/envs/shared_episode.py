"""Lets several sessions share one running episode of an external package that cannot copy episodes.

A session and its forks share the episode until one of them acts. The one that acts first keeps the episode.
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

        The episode need not count turns, because the session counts them.

        Raises:
            EnvironmentFault: the package failed for a reason other than the action.
        """
        ...


class Live:
    """Holds a running episode together with its position, which is the list of actions taken so far.

    Args:
        episode: an episode that was just opened.
        place: the object that holds the actions taken so far. A session may use the episode only if it holds the same
            object (compared by identity).
    """

    def __init__(self, episode: Episode, place: object) -> None:
        self.episode = episode
        self._place: object = place  # None while a session uses the episode, and after it was closed
        self._user: object = None  # the session that uses the episode
        self._closed = False
        self._lock = threading.Lock()

    def claim(self, place: object, user: object) -> bool:
        """Reserves the episode for the session ``user``, whose position is ``place``, and returns True.

        Returns False and reserves nothing if the episode is at another position, is in use or was closed.
        """
        with self._lock:
            if self._place is not place:
                return False
            self._place, self._user = None, user
            return True

    def leave(self, place: object) -> None:
        """Ends the reservation of the episode for a session. The episode is now at the position ``place``.

        If the episode was closed meanwhile, no session can use it again.
        """
        with self._lock:
            self._user = None
            self._place = None if self._closed else place

    def used_by(self, user: object) -> bool:
        """Returns whether the session ``user`` has reserved the episode.

        This is the case while a step of that session is running, and after a step of it has failed.
        """
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
