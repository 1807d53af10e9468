"""The environment ``env=tau2``: customer service of an airline, a shop and a phone company, as in tau2-bench."""

from turnwise_worlds.dialogues import Mistakes
from turnwise_worlds.tau2.environment import Tau2Env
from turnwise_worlds.tau2.session import EndpointUser

__all__ = ["EndpointUser", "Mistakes", "Tau2Env"]
