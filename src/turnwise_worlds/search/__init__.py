"""The environment ``env=search``: multi-hop questions that the policy answers by searching pages."""

from turnwise_worlds.search.environment import Mistakes, SearchEnv, SearchSession

__all__ = ["Mistakes", "SearchEnv", "SearchSession"]
