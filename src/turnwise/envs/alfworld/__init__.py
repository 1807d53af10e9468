"""``env=alfworld``: the original ALFWorld engine, an optional dependency (see ``requirements/alfworld.lock``)."""

from turnwise.envs.alfworld.environment import AlfworldEnvironment, AlfworldSession, MissingEngineError

__all__ = ["AlfworldEnvironment", "AlfworldSession", "MissingEngineError"]
