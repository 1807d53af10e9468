"""Generates tasks for the example server of ``env=mcp``, which manages boxes that hold one thing each."""

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
