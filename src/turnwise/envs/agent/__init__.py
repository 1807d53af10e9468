"""``env=agent``: trains the policy inside any agent program that calls a model over OpenAI's HTTP interface.

The policy takes the place of this model. The program needs no change and runs in the sandbox.
"""

from turnwise.envs.agent.environment import AgentEnv

__all__ = ["AgentEnv"]
