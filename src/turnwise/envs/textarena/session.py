"""A running episode of ``env=textarena``."""

from __future__ import annotations

from turnwise.envs.replay import ReplayedSession


class GameSession(ReplayedSession):
    """A :class:`~turnwise.envs.replay.ReplayedSession` whose experts and verifier use only the texts of the episode."""

    def texts(self) -> list[tuple[str, str]]:
        """Returns (action, observation) for each turn. The first pair is an empty action and the first observation."""
        opened = [("", str(message["content"])) for message in self.opening()]
        return [*opened, *((taken.action, taken.step.observation) for taken in self.taken)]

    @property
    def warned(self) -> bool:
        """Returns whether the last action was invalid. A second invalid action in a row would end the game."""
        return bool(self.taken) and bool(self.taken[-1].step.info.get("invalid"))
