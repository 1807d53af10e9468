"""A running episode of ``env=reasoning_gym``: one question, which the policy answers once or several times."""

from __future__ import annotations

import copy
import re
from typing import Literal

from turnwise.data.toolcalls import ToolCallError, split_thinking
from turnwise.envs.environment import Step, check_open
from turnwise.envs.reasoning_gym.package import Dataset, Item
from turnwise.types import Message, Task

Form = Literal["bare", "tags"]
HOW = "Think as long as you need, then put the final answer, and nothing else, between <answer> and </answer>."
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningSession:
    """A running episode, in which each reply is an answer and the answer's score is the reward.

    It implements ``turnwise.envs.environment.Session``.

    Args:
        horizon: maximum number of answers.
        threshold: an answer wins and ends the episode if its score is at least ``threshold``.
        form: ``bare`` means that the whole reply is the answer; ``tags`` means that the answer is the text between the
            last <answer> and </answer>.
    """

    def __init__(self, task: Task, dataset: Dataset, item: Item, horizon: int, threshold: float, form: Form) -> None:
        self.task, self.dataset, self.item = task, dataset, item
        self.horizon, self.threshold, self.form = horizon, threshold, form
        self.turns = 0
        self.done = self.won = False

    def opening(self) -> list[Message]:
        """Returns the question. For the form ``tags``, a system message before the question explains how to answer."""
        system: list[Message] = [{"role": "system", "content": HOW}] if self.form == "tags" else []
        return [*system, {"role": "user", "content": self.item.question}]

    def answer(self, action: str) -> str:
        """Returns the answer in a reply, without thinking and outer whitespace; empty if the reply has no answer."""
        try:
            text = split_thinking(action)[1]
        except ToolCallError:
            return ""
        if self.form == "bare":
            return text.strip()
        found = _TAGGED.findall(text)
        return str(found[-1]).strip() if found else ""

    def write(self, answer: str) -> str:
        """Returns the text of a reply that gives the answer."""
        return answer if self.form == "bare" else f"<answer>{answer}</answer>"

    def score(self, action: str) -> float:
        """Returns the score in [0, 1] of the answer in the policy's reply. A reply without an answer scores 0."""
        answer = self.answer(action)
        return self.dataset.score(self.item, answer) if answer else 0.0

    def step(self, action: str) -> Step:
        """Scores the policy's reply. The score is the reward of the step.

        Raises:
            RuntimeError: the episode is over.
        """
        check_open(self.task, self.done, self.turns)
        score = self.score(action)
        self.turns += 1
        self.won = score >= self.threshold
        self.done = self.won or self.turns >= self.horizon
        text = f"The score is {score:.2f}." + ("" if self.done else " Answer again.")
        return Step(text, score, self.done, self.won, {"score": score})

    def fork(self) -> ReasoningSession:
        """Returns an independent copy of the session."""
        return copy.copy(self)

    def admissible(self) -> list[str]:
        """Returns an empty list, because answers are free text."""
        return []
