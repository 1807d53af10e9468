"""The policy's probability of a task's true answer after each history of a tree (for IGPO, arXiv:2510.14967)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from turnwise.data.chat_tokens import ChatTokens
from turnwise.env import Environment, environment_of
from turnwise.errors import InputError
from turnwise.models.logprobs import score
from turnwise.rollouts.pack import pack
from turnwise.rollouts.predictor import branchable
from turnwise.types import Credit, RolloutTree, Turn


@dataclass(frozen=True, slots=True)
class AnswerProbability:
    """The function of a tree's histories that :class:`turnwise.methods.turn_credit.Igpo` reads. ``model`` is the policy
    that is trained, so the values are those of its weights when the credit is computed.
    """

    model: Any
    chat: ChatTokens
    environment: Environment
    row_tokens: int = 4096

    @torch.no_grad()
    def __call__(self, trees: Sequence[RolloutTree]) -> list[list[float]]:
        """Returns 1 + N values for each tree of N turns: for its root, and for the history after each turn. A value is
        the geometric mean of the probabilities of the answer's tokens; after the last turn of a rollout it is 0.

        Raises:
            InputError: a task has no written answer.
        """
        asked = [self._with_answers(tree) for tree in trees]
        values = [[0.0] * (1 + len(tree.turns)) for tree in trees]
        device = next(self.model.parameters()).device
        for number, (tree, credit) in enumerate(asked):
            update = pack([tree], [credit], self.row_tokens, 2 * self.row_tokens)
            answers = [turn.parent for turn, weight in zip(tree.turns, credit.weight, strict=True) if weight]
            for batch in update.batches:
                logprobs_U, _ = score(self.model, batch.to(device))
                of_answer: dict[int, list[float]] = defaultdict(list)
                logprobs_K = logprobs_U[batch.items.unique_K.to(device)].tolist()
                for place, logprob in zip(batch.items.turn_K.tolist(), logprobs_K, strict=True):
                    of_answer[place].append(logprob)
                for place, own in of_answer.items():
                    values[number][answers[place] + 1] = math.exp(math.fsum(own) / len(own))
        return values

    def _with_answers(self, tree: RolloutTree) -> tuple[RolloutTree, Credit]:
        """The tree with the answer as a further turn after each history, and a credit that asks for these turns only."""
        task = tree.state.task
        text = environment_of(self.environment, task).solution(task)
        if text is None:
            raise InputError(
                f"advantage=igpo: environment {task.env!r} has no written answer of its tasks (task {task.id}); choose an "
                "environment with questions, such as env=search"
            )
        ids = self.chat.action(text)[:-1]  # without the end of the turn
        answers = [Turn(parent, ids, [0.0] * len(ids), text) for parent in branchable(tree)]
        turns = [*tree.turns, *answers]
        weights = [0.0] * len(tree.turns) + [1.0] * len(answers)
        return replace(tree, turns=turns, stopped=False), Credit(
            [0.0] * len(turns), weights, sample=list(range(len(turns)))
        )
