"""``env=alfworld``: the original ALFWorld engine, an optional dependency (see ``requirements/alfworld.lock``)."""

from turnwise.envs.alfworld.environment import AlfworldEnvironment
from turnwise.envs.alfworld.session import AlfworldSession
from turnwise.envs.alfworld.workers import MissingEngineError

__all__ = ["AlfworldEnvironment", "AlfworldSession", "MissingEngineError"]
