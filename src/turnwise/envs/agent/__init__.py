"""``env=agent``: trains the policy as the model that an unchanged agent program calls over OpenAI's HTTP interface."""

from turnwise.envs.agent.environment import AgentEnv

__all__ = ["AgentEnv"]
