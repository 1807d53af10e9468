"""The environment ``env=tau2``: customer service of an airline, a shop and a phone company, as in tau2-bench."""

from turnwise.envs.dialogues import Mistakes
from turnwise.envs.tau2.endpoint_user import EndpointUser
from turnwise.envs.tau2.environment import Tau2Env, by_domain

__all__ = ["EndpointUser", "Mistakes", "Tau2Env", "by_domain"]
