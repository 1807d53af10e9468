"""``env=openenv``: environments behind OpenEnv servers."""

from turnwise.envs.openenv.environment import OpenenvEnv

__all__ = ["OpenenvEnv"]
