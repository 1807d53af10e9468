"""Rollouts without a language model: an engine with known action probabilities, and a tokenizer of characters."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import count
from typing import Any

from turnwise.engines.engine import Sample, Sampling, Told
from turnwise.types import Message
from turnwise_worlds.corridor import Policy

END = 0  # the token that ends an action


class Characters:
    """Converts between text and tokens as :class:`turnwise.data.chat_tokens.ChatTokens`. A token is a character."""

    stop_ids = (END,)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        return [ord(letter) for message in messages for letter in f"{message['content']}\n"]

    def bridge(self, observation: Sequence[Message], truncated: bool = False) -> list[int]:
        return self.prompt([{"role": "user", "content": ""}, *observation])

    def action(self, text: str) -> list[int]:
        return [*map(ord, text), END]

    def decode(self, action_ids: Sequence[int]) -> str:
        return "".join(map(chr, action_ids)).rstrip(chr(END))


class ScriptedEngine:
    """Draws each action from ``policy``, which sees the last line of the history, as the part of
    ``engines.engine.Engine`` that rollouts need.

    The first token of an action has the action's log-prob, all others have 0: only the first is drawn.
    """

    version = 0

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._histories: dict[int, str] = {}
        self._numbers = count()

    def open(self, ids: Sequence[int], near: str | None = None) -> int:
        node = next(self._numbers)
        self._histories[node] = "".join(map(chr, ids))
        return node

    def fork(self, node: int) -> int:
        copy = next(self._numbers)
        self._histories[copy] = self._histories[node]
        return copy

    def extend(self, node: int, ids: Sequence[int]) -> None:
        self._histories[node] += "".join(map(chr, ids))

    def sample(
        self, nodes: Sequence[int], sampling: Sampling, seeds: Sequence[int], on_sample: Told | None = None
    ) -> list[Sample]:
        samples = []
        for place, (node, seed) in enumerate(zip(nodes, seeds, strict=True)):
            chances = self.policy(self._histories[node].rstrip("\n").rpartition("\n")[2])
            (action,) = random.Random(seed).choices(list(chances), list(chances.values()))
            ids = [*map(ord, action), END]
            samples.append(Sample(ids, [math.log(chances[action]), *[0.0] * (len(ids) - 1)]))
            self.extend(node, ids)
            if on_sample is not None:
                on_sample(place, samples[-1])
        return samples

    def close(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self._histories.pop(node, None)

    def shutdown(self) -> None: ...
