"""A small MCP server with a state: boxes that hold one thing each.

``python -m turnwise_worlds.mcp.example_server`` runs the server over stdio. The tool ``empty`` is an example of a tool
that resets a server, and ``contents`` is an example of a tool by which a task checks the final state.
"""

from __future__ import annotations

import json

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("boxes", log_level="ERROR")
_boxes: dict[str, str] = {}


@server.tool(structured_output=False)
def look(box: str) -> str:
    """Says what is in a box."""
    return _boxes.get(box, "nothing")


@server.tool(structured_output=False)
def take(box: str) -> str:
    """Takes the thing out of a box."""
    if box not in _boxes:
        raise ToolError(f"the {box} box is empty")
    return _boxes.pop(box)


@server.tool(structured_output=False)
def put(box: str, thing: str) -> str:
    """Puts a thing into an empty box."""
    if box in _boxes:
        raise ToolError(f"the {box} box is full")
    _boxes[box] = thing
    return "ok"


@server.tool(structured_output=False)
def empty() -> str:
    """Empties all boxes."""
    _boxes.clear()
    return "ok"


@server.tool(structured_output=False)
def contents() -> str:
    """Says what is in which box, as JSON."""
    return json.dumps(_boxes, sort_keys=True)


if __name__ == "__main__":
    server.run()
