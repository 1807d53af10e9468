"""A run's judge: its score beside the reward, and the first question that shows whether it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnwise.data.chat import ChatTokens
from turnwise.data.steps import Step
from turnwise.data.toolcalls.formats import Format
from turnwise.errors import InputError
from turnwise.rollouts.judged import Judged
from turnwise.training.ranks import Ranks
from turnwise.types import State


def judged_of(parts: Mapping[str, Any], steps: Mapping[str, Step], chat: ChatTokens, form: Format) -> Judged | None:
    """The reward with the judge's score beside it, for replies that write calls in ``form``; None without a judge."""
    if parts["judge"] is None:
        return None
    return Judged(parts["reward"], parts["judge"], steps, chat.written, form)


def prove(judged: Judged | None, candidates: Sequence[State], ranks: Ranks, tell: Callable[[str], None]) -> None:
    """Ask one question before anything is computed: a run whose judge never answers would be a run without one.

    Raises:
        InputError: there is no score; in every process of the run, for the others would wait for the one that asked.
    """
    told = fault = None
    if judged is not None and ranks.first and len(candidates):
        try:
            told = judged.prove(candidates[0])
        except InputError as error:
            fault = str(error)
    if fault := ranks.tell(fault):
        raise InputError(fault)
    if told:
        tell(told)
