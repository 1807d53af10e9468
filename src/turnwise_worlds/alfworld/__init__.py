"""``env=alfworld``: the original ALFWorld engine, an optional dependency (see ``requirements/alfworld.lock``)."""

from turnwise_worlds.alfworld.environment import AlfworldEnvironment, AlfworldSession, MissingEngineError

__all__ = ["AlfworldEnvironment", "AlfworldSession", "MissingEngineError"]
