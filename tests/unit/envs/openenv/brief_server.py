"""A server that is made with OpenEnv's own helpers: ``python brief_server.py PORT`` pays for short replies that name a letter.

Each episode asks twice for a letter. A reply earns half a point where it holds the letter, less a hundredth for each character.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Said(Action):
    text: str


class Asked(Observation):
    question: str


class Brief(Environment[Said, Asked, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.letters: list[str] = []
        self.turns = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Asked:
        self.letters = random.Random(seed).choices("aeiost", k=2)
        self.turns = 0
        return Asked(question=f"say {self.letters[0]}")

    def step(self, action: Said, timeout_s: float | None = None, **more: Any) -> Asked:
        if action.text == "break":
            raise RuntimeError("broken")
        letter = self.letters[self.turns]
        self.turns += 1
        reward = max(0.0, 0.5 - len(action.text) / 100) if letter in action.text else 0.0
        done = self.turns == len(self.letters)
        return Asked(question="" if done else f"say {self.letters[self.turns]}", reward=reward, done=done)

    @property
    def state(self) -> State:
        return State(step_count=self.turns)


if __name__ == "__main__":
    app = create_fastapi_app(Brief, Said, Asked, max_concurrent_envs=int((*sys.argv, "512")[2]))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
