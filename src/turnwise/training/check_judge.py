"""Asks a run's judge a first question, to check that the judge answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning import Callback

from turnwise.errors import InputError
from turnwise.rollouts.judged import Judged
from turnwise.training.distributed import DistributedContext
from turnwise.types import State


class Proof(Callback):
    """Asks the judge a first question, to check that it answers before the run depends on it.

    A new run asks at once. A resumed run asks when training begins, and not at all if no iteration is left. One process
    asks and tells the others the outcome.

    Args:
        judged: the reward with the judge; None: there is no judge.
        candidates: the states of the run; the question is about the first one.
        distributed: the processes of the run.
        log: is called with what the user should know about the answer.
    """

    def __init__(
        self,
        judged: Judged | None,
        candidates: Sequence[State],
        distributed: DistributedContext,
        log: Callable[[str], None],
    ) -> None:
        self.judged, self.candidates, self.distributed, self.log_line = judged, candidates, distributed, log
        self.asked = False

    def on_train_start(self, *of_lightning: Any) -> None:
        if not self.asked:
            self.ask()

    def ask(self) -> None:
        """Asks the question.

        Raises:
            InputError: there is no score. Every process raises the error, because the others wait for the one that
                asked.
        """
        self.asked = True
        told = fault = None
        if self.judged is not None and self.distributed.first and len(self.candidates):
            try:
                told = self.judged.prove(self.candidates[0])
            except InputError as error:
                fault = str(error)
        if fault := self.distributed.broadcast(fault):
            raise InputError(fault)
        if told:
            self.log_line(told)
