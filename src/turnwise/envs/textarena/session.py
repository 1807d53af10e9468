"""A live episode of ``env=textarena``, with what its game's solver says of the place it stands at."""

from __future__ import annotations

from turnwise.envs.replay import ReplayedSession


class GameSession(ReplayedSession):
    """A :class:`~turnwise.envs.replay.ReplayedSession` whose experts and verifier read its texts alone."""

    def texts(self) -> list[tuple[str, str]]:
        """Returns actions and what they showed; the opening is shown by an empty action."""
        opened = [("", str(message["content"])) for message in self.opening()]
        return [*opened, *((taken.action, taken.step.observation) for taken in self.taken)]

    @property
    def warned(self) -> bool:
        """Whether the last action was invalid; a second one in a row would end the game."""
        return bool(self.taken) and bool(self.taken[-1].step.info.get("invalid"))
