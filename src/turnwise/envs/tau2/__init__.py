"""tau2-bench: the tasks, policies, tools and databases of inspect-evals, with a user by rule or behind an endpoint."""

from turnwise.envs.dialogues import Mistakes
from turnwise.envs.tau2.endpoint import EndpointUser
from turnwise.envs.tau2.environment import Tau2Env, by_domain

__all__ = ["EndpointUser", "Mistakes", "Tau2Env", "by_domain"]
