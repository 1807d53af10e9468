"""``env=alfworld``: the original ALFWorld engine, an optional dependency (see ``requirements/alfworld.lock``)."""

from turnwise_worlds.alfworld.environment import AlfworldEnvironment, AlfworldSession
from turnwise_worlds.alfworld.workers import MissingEngineError

__all__ = ["AlfworldEnvironment", "AlfworldSession", "MissingEngineError"]
