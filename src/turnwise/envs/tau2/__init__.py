"""The benchmark tau2-bench, with the tasks, policies, tools and databases that the package inspect-evals ships.

The user is simulated by rules or by a model behind an endpoint.
"""

from turnwise.envs.dialogues import Mistakes
from turnwise.envs.tau2.endpoint import EndpointUser
from turnwise.envs.tau2.environment import Tau2Env, by_domain

__all__ = ["EndpointUser", "Mistakes", "Tau2Env", "by_domain"]
