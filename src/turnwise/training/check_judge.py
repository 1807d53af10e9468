"""Asks a run's judge one question at the start, to check that the judge answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning import Callback

from turnwise.errors import InputError
from turnwise.rollouts.judge_scores import Judged
from turnwise.training.distributed import DistributedContext
from turnwise.types import State


class Proof(Callback):
    """Asks the judge one question, to check that the judge answers before the run needs the judge.

    A new run asks at its start. A resumed run asks when training begins, so a run with no iteration left does not ask.
    The first process asks and sends the outcome to all processes.

    Args:
        judged: the reward that contains the judge, or None if the run has no judge.
        candidates: the candidate states of the run. The question is about the first candidate.
        log: is called with the judge's message for the user, if there is one.
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
        """Asks the judge, unless there is no judge or no candidate.

        Raises:
            InputError: the judge gave no score. Every process raises this error.
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
