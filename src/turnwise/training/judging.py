"""A run's judge: its score beside the reward, and the first question, which shows whether the judge answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning import Callback

from turnwise.data.chat import ChatTokens
from turnwise.data.steps import TurnInContext
from turnwise.data.toolcalls.formats import Format
from turnwise.errors import InputError
from turnwise.rollouts.judged import Judged
from turnwise.training.distributed import DistributedContext
from turnwise.types import State


def judged_of(
    parts: Mapping[str, Any], steps: Mapping[str, TurnInContext], chat: ChatTokens, form: Format
) -> Judged | None:
    """The reward with the judge's score beside it, for replies that write calls in ``form``; None without a judge."""
    if parts["judge"] is None:
        return None
    return Judged(parts["reward"], parts["judge"], steps, chat.written, form)


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
