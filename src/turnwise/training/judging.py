"""The first question to a run's judge, which shows whether the judge answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lightning import Callback

from turnwise.errors import InputError
from turnwise.rollouts.judged import Judged
from turnwise.training.distributed import DistributedContext
from turnwise.types import State


class Proof(Callback):
    """The first question to a judge, which shows that it answers before the run depends on it.

    A new run asks at once. A run that goes on asks when it begins to train, and not at all where no iteration is left. One
    process asks, and all learn what came of it.

    Args:
        judged: the reward with the judge; None: there is nothing to ask.
        candidates: the states of the run, whose first one the question is about.
        tell: is given what a person should know of the answer.
    """

    def __init__(
        self,
        judged: Judged | None,
        candidates: Sequence[State],
        distributed: DistributedContext,
        tell: Callable[[str], None],
    ) -> None:
        self.judged, self.candidates, self.distributed, self.tell = judged, candidates, distributed, tell
        self.asked = False

    def on_train_start(self, *of_lightning: Any) -> None:
        if not self.asked:
            self.ask()

    def ask(self) -> None:
        """Raises:
        InputError: there is no score. Every process raises it, because the others would wait for the one that asked.
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
            self.tell(told)
