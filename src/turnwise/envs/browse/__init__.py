"""An environment of questions whose evidence has to be collected from pages.

The policy's tools are search, open, find and answer.
"""

from turnwise.envs.browse.environment import BrowseEnv
from turnwise.envs.browse.experts import Mistakes
from turnwise.envs.browse.session import BrowseSession

__all__ = ["BrowseEnv", "BrowseSession", "Mistakes"]
