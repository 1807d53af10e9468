"""``env=mcp``: tasks that the policy solves with tools of Model Context Protocol (MCP) servers."""

from turnwise_worlds.mcp.environment import McpEnv, Mistakes

__all__ = ["McpEnv", "Mistakes"]
