"""The environment ``env=textarena``: single-player games of the package textarena. Four games have scripted experts."""

from turnwise.envs.textarena.environment import Mistakes, TextArenaEnv
from turnwise.envs.textarena.episode import GameEpisode, GameSession

__all__ = ["GameEpisode", "GameSession", "Mistakes", "TextArenaEnv"]
