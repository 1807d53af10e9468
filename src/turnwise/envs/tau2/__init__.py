"""The benchmark tau2-bench: customer service of an airline, a shop and a phone company.

The tasks, company rules, tools and databases are those that the package inspect-evals ships. A simulated user, who
follows rules or is played by a model behind an endpoint, talks to the agent. The agent is the policy or a scripted
expert.
"""

from turnwise.envs.dialogues import Mistakes
from turnwise.envs.tau2.endpoint_user import EndpointUser
from turnwise.envs.tau2.environment import Tau2Env, by_domain

__all__ = ["EndpointUser", "Mistakes", "Tau2Env", "by_domain"]
