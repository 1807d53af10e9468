"""``env=browse``: the policy answers questions with the tools search, open, find and answer."""

from turnwise.envs.browse.environment import BrowseEnv
from turnwise.envs.browse.experts import Mistakes
from turnwise.envs.browse.session import BrowseSession

__all__ = ["BrowseEnv", "BrowseSession", "Mistakes"]
