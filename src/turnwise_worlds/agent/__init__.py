"""``env=agent``: trains the policy as the model that an unchanged agent program calls over OpenAI's HTTP interface."""

from turnwise_worlds.agent.environment import AgentEnv

__all__ = ["AgentEnv"]
