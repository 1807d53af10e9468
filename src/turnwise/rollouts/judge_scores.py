"""Asks a judge, such as a language model, to score every rollout while other rollouts are still running."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from turnwise.algo.rewards.reward import Reward
from turnwise.data.steps import TurnInContext
from turnwise.data.thinking import split_thinking
from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.parsing import ToolCallError
from turnwise.errors import InputError
from turnwise.judges.judge import Candidate, Judge
from turnwise.types import Rewards, RolloutTree, State, ToolCall


@dataclass(slots=True)
class Judged:
    """A reward that adds a judge's scores, under the name ``reasoning``, to the rewards of ``reward``.

    :meth:`ask` submits the question about one reply and returns at once. Calling the object with a finished tree
    submits the remaining questions and waits for all answers. Equal replies at one state share one question. No answer
    is used in a later collection.

    Args:
        reward: the outcome reward, for trees whose rollouts consist of one action.
        steps: map from state id to the demonstrated turn with its conversation, tools, rationale and calls.
        text: function that takes the token ids of an action and returns its whole text, including the thinking.
        format: the format of tool calls, in replies and in demonstrations that contain their calls as text.
    """

    reward: Reward
    judge: Judge
    steps: Mapping[str, TurnInContext]
    text: Callable[[Sequence[int]], str]
    format: Format = "hermes"
    waited: float = field(default=0.0, init=False)  # seconds that calls of this object have waited for answers
    _asked: dict[str, dict[tuple[int, ...], Future[float | None]]] = field(default_factory=dict, init=False, repr=False)

    def prove(self, state: State) -> str | None:
        """Asks the judge about the demonstrated reply of one state, as a test, and returns a message for the user, or
        None. A judge without a method ``prove`` is not asked.

        Raises:
            InputError: the judge gives no score, or the demonstrated action is not in ``format``.
        """
        prove = getattr(self.judge, "prove", None)
        return prove(candidate(self.steps[state.id], self.text(state.expert_ids), self.format)) if prove else None

    def ask(self, state: State, action_ids: Sequence[int]) -> None:
        """Submits the question about a reply, unless it was submitted before, and returns without waiting.

        Raises:
            InputError: the demonstrated action is not in ``format``.
        """
        asked = self._asked.setdefault(state.id, {})
        key = tuple(action_ids)
        if key not in asked:
            asked[key] = self.judge.submit(candidate(self.steps[state.id], self.text(action_ids), self.format))

    def __call__(self, tree: RolloutTree) -> Rewards:
        """Returns the rewards of a tree's leaves. ``reasoning`` is NaN for leaves without a score of the judge, and for
        leaves whose environment failed.
        """
        rewards = self.reward(tree)
        leaves = tree.leaves()
        for leaf in leaves:
            self.ask(tree.state, tree.turns[leaf].action_ids)
        asked = self._asked.pop(tree.state.id, {})
        began = time.monotonic()
        scores = [asked[tuple(tree.turns[leaf].action_ids)].result() for leaf in leaves]
        self.waited += time.monotonic() - began
        reasoning = [
            math.nan if score is None or leaf in tree.invalid else score
            for leaf, score in zip(leaves, scores, strict=True)
        ]
        return {**rewards, "reasoning": reasoning}

    def report(self) -> dict[str, float]:
        """Returns the judge's report, with the entry ``wait_seconds`` added."""
        return {**self.judge.report(), "wait_seconds": self.waited}


def candidate(step: TurnInContext, text: str, form: Format) -> Candidate:
    """Returns the question with which a judge scores a rollout's reply ``text`` at a demonstrated turn.

    The reference of the question is the rationale of the demonstrated turn, or without a rationale the text of the
    demonstrated reply without its calls. If the reply cannot be parsed, the question has no calls, and the thinking in
    the question is the recognised thinking of the reply, or the whole reply if no thinking is recognised.

    Raises:
        InputError: the demonstration contains its calls as text, and these calls are not in the format ``form``.
    """
    said, true = step.content, step.calls
    if not true:
        try:
            reply = PARSERS[form](step.content, step.tools)
        except ToolCallError as error:
            raise InputError(
                f"{step.id}: the demonstrated action is not in the format {form} ({error}): set reward.format to the "
                "demonstrations' format, or correct them"
            ) from error
        said, true = reply.content, reply.calls
    thinking, calls = _parts(text, step, form)
    return Candidate(
        id=step.id,
        prompt=step.prompt,
        text=text,
        thinking=thinking,
        calls=calls,
        reference=step.rationale or said.strip() or None,
        reference_calls=true,
        tools=step.tools,
    )


def _parts(text: str, step: TurnInContext, form: Format) -> tuple[str, tuple[ToolCall, ...] | None]:
    """Returns the thinking and text of a reply, and its calls (None if the reply cannot be parsed)."""
    try:
        reply = PARSERS[form](text, step.tools)
        return "\n\n".join(filter(None, (reply.thinking, reply.content))), reply.calls
    except ToolCallError:
        pass
    try:
        return split_thinking(text)[0] or text, None
    except ToolCallError:
        return text, None
