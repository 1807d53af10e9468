"""The example of ``env=mcp``: a small server with a state, boxes that hold one thing each, and generated tasks for it.

``python -m turnwise_worlds.mcp_boxes`` runs the server over stdio. By the tool ``contents``, a task checks the final state.
"""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

from turnwise.types import Task

BOXES = ("red", "blue", "green", "black", "white", "brown", "pink", "grey")
THINGS = (
    "key", "coin", "book", "lamp", "rope", "cup", "bell", "map",
    "ring", "shoe", "hat", "fork", "brush", "stone", "glove", "spoon",
)  # fmt: skip
# things that occur only in tasks of the split ``unseen``
NEW = ("candle", "ticket", "button", "mirror", "feather", "marble", "whistle", "ribbon")
_FILLED = 3  # number of boxes that hold something at the start


def tasks(env: str, split: str, count: int, seed: int) -> list[Task]:
    rng = random.Random(f"mcp boxes {split} {seed}")
    found: dict[str, Task] = {}
    while len(found) < count:
        data = _drawn(rng, NEW if split == "unseen" else THINGS)
        digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
        if split == "unseen" or (int(digest[:8], 16) % 5 == 0) == (split == "seen"):
            found.setdefault(digest, Task(env, f"{split}/{digest[:12]}", split, data, data["calls"][0]["name"]))
    return list(found.values())


def _drawn(rng: random.Random, things: tuple[str, ...]) -> dict[str, Any]:
    boxes, held = rng.sample(BOXES, _FILLED + 1), rng.sample(things, _FILLED + 1)
    start = dict(zip(boxes[:_FILLED], held, strict=False))
    source, target, thing = boxes[0], boxes[-1], held[-1]
    setup = [_call("put", box=box, thing=inside) for box, inside in start.items()]
    kind = rng.choice(("look", "put", "move"))
    if kind == "look":
        asked = {"prompt": f"what is in the {source} box", "answer": start[source]}
        return {**asked, "setup": setup, "calls": [_call("look", box=source)]}
    if kind == "put":
        prompt, calls = f"put the {thing} in the {target} box", [_call("put", box=target, thing=thing)]
        end = {**start, target: thing}
    else:
        prompt = f"move the thing in the {source} box to the {target} box"
        calls = [_call("take", box=source), _call("put", box=target, thing=start[source])]
        end = {**start, target: start[source]}
        del end[source]
    check = {**_call("contents"), "result": json.dumps(end, sort_keys=True)}
    return {"prompt": prompt, "setup": setup, "check": check, "calls": calls}


def _call(name: str, **arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def main() -> None:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server = MCPServer("boxes", log_level="ERROR")
    held: dict[str, str] = {}  # box -> the thing in it

    @server.tool(structured_output=False)
    def look(box: str) -> str:
        """Says what is in a box."""
        return held.get(box, "nothing")

    @server.tool(structured_output=False)
    def take(box: str) -> str:
        """Takes the thing out of a box."""
        if box not in held:
            raise ToolError(f"the {box} box is empty")
        return held.pop(box)

    @server.tool(structured_output=False)
    def put(box: str, thing: str) -> str:
        """Puts a thing into an empty box."""
        if box in held:
            raise ToolError(f"the {box} box is full")
        held[box] = thing
        return "ok"

    @server.tool(structured_output=False)
    def contents() -> str:
        """Says what is in which box, as JSON."""
        return json.dumps(held, sort_keys=True)

    server.run()


if __name__ == "__main__":
    main()
