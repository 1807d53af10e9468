"""A running episode of ``env=textarena``: one game that the policy plays."""

from __future__ import annotations

from turnwise.envs.replay import ReplayedSession


class GameSession(ReplayedSession):
    """A running game of ``env=textarena``."""

    def texts(self) -> list[tuple[str, str]]:
        """Returns a pair (action, observation) for each turn, after an empty action with the first observation."""
        opened = [("", str(message["content"])) for message in self.opening()]
        return [*opened, *((taken.action, taken.step.observation) for taken in self.taken)]

    @property
    def warned(self) -> bool:
        """Returns whether the player's last action was invalid, so that another invalid action would end the game."""
        return bool(self.taken) and bool(self.taken[-1].step.info.get("invalid"))
