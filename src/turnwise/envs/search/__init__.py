"""Multi-hop questions that the policy answers by searching pages.

The questions and pages come from a generated encyclopaedia or from public data sets.
"""

from turnwise.envs.search.environment import SearchEnv
from turnwise.envs.search.experts import Mistakes
from turnwise.envs.search.session import SearchSession

__all__ = ["Mistakes", "SearchEnv", "SearchSession"]
