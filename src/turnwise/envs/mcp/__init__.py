"""``env=mcp``: tasks that are solved with the tools of servers of the Model Context Protocol."""

from turnwise.envs.mcp.environment import McpEnv, Mistakes

__all__ = ["McpEnv", "Mistakes"]
