"""``turnwise_worlds.facts.FactsEnv``: one-turn questions of general knowledge, an out-of-domain suite for pretrained models.

It is no environment to train in: it has no experts. An answer is right if it contains the fact as a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from turnwise.env import CountedSession, Environment, Step, check_tasks, first_tasks
from turnwise.files import read_yaml
from turnwise.types import Message, Task

FACTS = read_yaml(Path(__file__).with_name("facts.yaml"))


def _facts() -> Iterator[tuple[str, str, str]]:
    """Yields (kind, question, answer)."""
    for kind, facts in FACTS.items():
        for of, answer in facts["answers"].items():
            yield kind, facts["asks"].format(of), answer
    for a in range(2, 10):
        for b in range(2, 10):
            yield "sum", f"What is {a} plus {b}?", str(a + b)


class FactsSession(CountedSession):
    horizon = 1

    def __init__(self, task: Task) -> None:
        self.task = task

    def opening(self) -> list[Message]:
        return [{"role": "user", "content": str(self.task.data["question"])}]

    def answer(self, action: str) -> Step:
        answer = str(self.task.data["answer"])
        exact = 0 if self.task.subset == "symbol" else re.IGNORECASE  # "as" is no arsenic
        won = bool(re.search(rf"\b{re.escape(answer)}\b", action, exact))
        return Step(f"The answer is {answer}.", float(won), True, won)


class FactsEnv(Environment):
    """Facts of four kinds (capitals, symbols of elements, opposites, sums), the same in every split."""

    name, horizon = "facts", 1

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        check_tasks(split, count)
        return [
            Task(self.name, f"{split}/{question}", split, {"question": question, "answer": answer}, kind)
            for kind, question, answer in first_tasks(list(_facts()), count, f"split {split} of facts", f"facts {seed}")
        ]

    def reset(self, task: Task) -> FactsSession:
        return FactsSession(task)
