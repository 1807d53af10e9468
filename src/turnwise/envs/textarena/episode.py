"""Plays one game of the installed package textarena as an episode. Equal seeds give equal games.

The package draws from Python's global random generator. In Turnwise, each game has its own state of this generator,
which is active only while a function of the game runs.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from turnwise.envs.environment import Step
from turnwise.envs.replay import ReplayedSession
from turnwise.errors import InputError
from turnwise.types import Message

INSTALL = "`make textarena` installs it"
LONGEST = 2_000  # maximum length of an action in characters; a longer action is cut off before the game gets it


class MissingTextArenaError(InputError):
    """The package textarena, or a library that it imports, is not installed."""


def package() -> Any:
    """Imports and returns the package textarena.

    Raises:
        MissingTextArenaError: the package cannot be imported.
    """
    if find_spec("textarena") is None:
        raise MissingTextArenaError(f"env=textarena needs textarena, which is not installed here; {INSTALL}")
    try:
        import textarena
    except ImportError as error:
        raise MissingTextArenaError(f"env=textarena: textarena cannot be imported ({error}); {INSTALL}") from error
    return textarena


class GameEpisode:
    """One game of textarena as an episode. It implements ``turnwise.envs.shared_episode.Episode``.

    Args:
        name: id of the game in the package's registry.
        settings: settings of the game that replace the registered ones.
        seed: seed of the game's random draws.

    Raises:
        TypeError: the game has no such setting.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], seed: int) -> None:
        made = package()
        self._action = made.core.ObservationType.PLAYER_ACTION
        self._draws = random.Random(seed).getstate()
        with self._own_draws():
            self._game = made.make(
                f"{name}-raw", **settings
            )  # "-raw" leaves out the package's wrappers, which repeat the whole history in every observation
            self._game.reset(num_players=1, seed=seed)
        self._opening = self._shown()

    @property
    def turns(self) -> int | None:
        """Returns the game's own maximum number of turns; None if the game has no limit."""
        limit = self._game.state.max_turns
        return None if limit is None else int(limit)

    def opening(self) -> list[Message]:
        return [{"role": "user", "content": self._opening}]

    def act(self, text: str) -> Step:
        """Passes the policy's reply to the game and returns the game's answer.

        The game ends at a second invalid move in a row, and at a reply that the game cannot read. In both cases the
        reward is at most 0. Otherwise the policy could gain by giving up, because some games reward partial results.
        """
        state = self._game.state
        try:
            with self._own_draws():
                done, _ = self._game.step(text[:LONGEST])
        except Exception:  # some games do not check a move completely
            return Step("The game cannot read this move and is over.", 0.0, True, False, {"invalid": 1.0})
        shown = self._shown()
        info = {"invalid": float(bool(getattr(state, "error_count", 0)) or bool(state.game_info[0]["invalid_move"]))}
        if not done:
            return Step(shown, info=info)
        reward = float((state.rewards or {}).get(0, 0.0))
        if state.game_info[0]["invalid_move"]:
            reward = min(0.0, reward)
        reason = str(state.game_info[0].get("reason") or "")
        return Step("\n".join(filter(None, (shown, reason))), reward, True, reward >= 1, info)

    def _shown(self) -> str:
        """Returns the text that the game has written since the last call, without the player's moves."""
        _, heard = self._game.get_observation()
        return "\n".join(text.strip("\n") for _, text, kind in heard if kind != self._action)

    @contextlib.contextmanager
    def _own_draws(self) -> Iterator[None]:
        outer = random.getstate()
        random.setstate(self._draws)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # some games print to standard output
                yield
        finally:
            self._draws = random.getstate()
            random.setstate(outer)


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
