"""The environment ``env=search``: multi-hop questions that the policy answers by searching pages."""

from turnwise.envs.search.environment import SearchEnv
from turnwise.envs.search.experts import Mistakes
from turnwise.envs.search.session import SearchSession

__all__ = ["Mistakes", "SearchEnv", "SearchSession"]
