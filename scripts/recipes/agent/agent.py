"""Runs an agent that does chores in a household: a plain loop around the ``openai`` client, without code for training.

``task.json`` holds the agent's chore. At the end the agent writes 1 or 0 into ``score.txt``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openai import OpenAI

from turnwise.types import Task
from turnwise_worlds.household import HouseholdEnv


def main() -> None:
    client = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    chore = Task(**json.loads(Path("task.json").read_text())["chore"])
    episode = HouseholdEnv(horizon=30).reset(chore)
    messages: list[Any] = list(episode.opening())
    while not episode.done:
        reply = client.chat.completions.create(model="policy", messages=messages).choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        messages += episode.step(reply.content or "").shown
    Path("score.txt").write_text(str(float(episode.won)))


if __name__ == "__main__":
    main()
