"""``env=openenv``: environments that an OpenEnv server provides."""

from turnwise.envs.openenv.environment import OpenenvEnv

__all__ = ["OpenenvEnv"]
