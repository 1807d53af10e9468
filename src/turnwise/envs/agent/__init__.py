"""``env=agent``: any program that asks for its replies over the interface of OpenAI. It runs in the sandbox, unchanged."""

from turnwise.envs.agent.environment import AgentEnv

__all__ = ["AgentEnv"]
