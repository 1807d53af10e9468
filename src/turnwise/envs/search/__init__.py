"""Multi-hop questions that are answered by searching pages: a generated encyclopaedia, or public data sets."""

from turnwise.envs.search.environment import SearchEnv
from turnwise.envs.search.experts import Mistakes
from turnwise.envs.search.session import SearchSession

__all__ = ["Mistakes", "SearchEnv", "SearchSession"]
