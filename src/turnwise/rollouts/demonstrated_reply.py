"""Judges the policy's replies in dialogues without an environment, by comparison with the demonstrated reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rapidfuzz.distance import Levenshtein

from turnwise.data.match_calls import MOST, accepts, equivalent, identical
from turnwise.data.toolcalls import PARSERS, Format, ToolCallError
from turnwise.errors import InputError
from turnwise.types import State, Turn

Kind = Literal["strict", "calls", "similarity", "arguments"]


@dataclass(frozen=True, slots=True)
class Anchored:
    """Compares a reply of the policy with the demonstrated reply and returns the verdicts ``functional`` and
    ``strict`` (our rules for PivotRL, arXiv:2603.21383, section 3.1).

    A reply is ``strict`` if it has the same calls in the same order as the demonstrated reply, or, without calls, the
    same text up to whitespace. The rule for ``functional`` depends on the demonstrated reply. If the demonstrated reply
    has calls, the calls of the judged reply must match these calls one to one by name and arguments
    (``data.toolcalls.match``). If the demonstrated reply has no calls, the judged reply must have similar words and no
    call. Rows of a pivot file are judged by the rule of NeMo Gym (``data.toolcalls.nemo_gym_rule``), because pivot
    files come from NeMo Gym. A truncated reply is neither ``functional`` nor ``strict``.

    Attributes:
        format: the format of tool calls, in replies and in demonstrations.
        kind: the rule for ``functional`` that applies to all replies: ``strict``, ``calls``, ``similarity``, or
            ``arguments`` (the rule for pivot files). None: the rule depends on the demonstrated reply.
        threshold: least :func:`similarity` of an accepted reply without calls.
        word_overlap: least fraction of common words at which the rule ``arguments`` accepts two texts as equal.
    """

    format: Format = "hermes"
    kind: Kind | None = None
    threshold: float = 0.8
    word_overlap: float = 0.1

    def __post_init__(self) -> None:
        if self.kind not in (None, *get_args(Kind)):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))} or null, got {self.kind!r}")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"threshold must be a similarity in (0, 1], got {self.threshold}")
        if not 0 <= self.word_overlap <= MOST:
            raise ValueError(
                f"word_overlap must be from 0 to {MOST}, the overlap of two texts with equal words; got "
                f"{self.word_overlap}"
            )

    def __call__(self, state: State, turn: Turn) -> tuple[bool, bool]:
        """Returns the verdicts ``functional`` and ``strict``.

        Raises:
            InputError: the demonstrated reply is not in the format ``self.format``.
        """
        assert state.expert is not None
        tools: Sequence[Any] = state.task.data.get("tools", ())
        try:
            expected = PARSERS[self.format](state.expert, tools)
        except ToolCallError as error:
            raise InputError(
                f"{state.id}: the demonstrated reply is not in the format {self.format} ({error}): set data.format to "
                "the demonstrations' format, or correct them"
            ) from error
        if turn.truncated:
            return False, False
        try:
            made = PARSERS[self.format](turn.text, tools)
        except ToolCallError:
            return False, False
        if expected.calls or made.calls:
            strict = identical(made.calls, expected.calls)
        else:
            strict = made.content.split() == expected.content.split()
        kind = self.kind or ("arguments" if state.pivot else "calls" if expected.calls else "similarity")
        if kind == "strict":
            return strict, strict
        if kind == "arguments":
            return accepts(made, expected, self.word_overlap), strict
        if kind == "calls":
            return equivalent(made.calls, expected.calls, tools), strict
        if bool(made.calls) != bool(expected.calls):
            return False, strict
        return similarity(turn.text, state.expert) >= self.threshold, strict


def similarity(made: str, expected: str) -> float:
    """Returns 1 minus the edit distance between two lists of words, divided by the length of the longer list.

    Case is ignored, so the result is 1 if the texts differ only in case and whitespace.
    """
    return float(Levenshtein.normalized_similarity(made.lower().split(), expected.lower().split()))
