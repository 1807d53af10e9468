"""The environment ``env=tau2``: customer service of an airline, a shop and a phone company, as in tau2-bench."""

from turnwise_worlds.tau2.environment import Tau2Env
from turnwise_worlds.tau2.user import EndpointUser
from turnwise_worlds.tool_dialogues import Mistakes

__all__ = ["EndpointUser", "Mistakes", "Tau2Env"]
