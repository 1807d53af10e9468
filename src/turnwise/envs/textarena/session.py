"""A running episode of ``env=textarena``: one game that the policy plays."""

from __future__ import annotations

from turnwise.envs.replay import ReplayedSession


class GameSession(ReplayedSession):
    """A running game of ``env=textarena``.

    The experts and the verifier of ``env=textarena`` use only the texts of the episode, which :meth:`texts` returns.
    """

    def texts(self) -> list[tuple[str, str]]:
        """Returns a list of pairs (action, observation). The first pair is an empty action with the first observation.
        Then follows one pair for each turn so far.
        """
        opened = [("", str(message["content"])) for message in self.opening()]
        return [*opened, *((taken.action, taken.step.observation) for taken in self.taken)]

    @property
    def warned(self) -> bool:
        """Returns whether the player's last action was invalid. A second invalid action in a row would end the game."""
        return bool(self.taken) and bool(self.taken[-1].step.info.get("invalid"))
