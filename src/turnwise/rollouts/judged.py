"""A judge's score of every rollout in addition to its reward, asked for while other rollouts are still running."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from turnwise.algo.rewards.reward import Reward
from turnwise.data.steps import TurnInContext
from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.reply import ToolCallError, split_thinking
from turnwise.errors import InputError
from turnwise.judges.judge import Candidate, Judge
from turnwise.types import Rewards, RolloutTree, State, ToolCall

NOT_SUMS = ("calls_per_s", "tokens_per_s", "latency_p50", "latency_p95")  # keys of a judge's report that do not add up


@dataclass(slots=True)
class Judged:
    """Adds the score of a judge to the rewards of ``reward``, as ``reasoning``; ``total`` is not changed.

    :meth:`ask` submits the question about one reply, and a call with a finished tree waits for the answers about it. If
    no question about a reply was submitted before, the call submits it. Equal replies at one state are one question.
    Questions belong to one collection: the call removes those of the tree's state.

    Args:
        reward: the outcome reward, of trees whose rollouts are one action.
        judge: gives the scores.
        steps: the demonstrated turns by the ids of their states: conversation, tools, rationale and calls.
        text: returns everything that was written, including the thinking, given an action's ids.
        format: how calls are written, in replies and in demonstrations that contain them as text.
    """

    reward: Reward
    judge: Judge
    steps: Mapping[str, TurnInContext]
    text: Callable[[Sequence[int]], str]
    format: Format = "hermes"
    waited: float = field(default=0.0, init=False)  # seconds spent waiting for answers after all rollouts had ended
    _asked: dict[str, dict[tuple[int, ...], Future[float | None]]] = field(default_factory=dict, init=False, repr=False)

    def prove(self, state: State) -> str | None:
        """Asks about the demonstrated reply of one state, if the judge can fail, and returns a message for the user.

        Raises:
            InputError: the judge gives no score, or the demonstrated action is not in ``format``.
        """
        prove = getattr(self.judge, "prove", None)
        return prove(candidate(self.steps[state.id], self.text(state.expert_ids), self.format)) if prove else None

    def ask(self, state: State, action_ids: Sequence[int]) -> None:
        """Asks about a reply unless it was asked about before, and returns at once.

        Raises:
            InputError: the demonstrated action is not in ``format``.
        """
        asked = self._asked.setdefault(state.id, {})
        key = tuple(action_ids)
        if key not in asked:
            asked[key] = self.judge.submit(candidate(self.steps[state.id], self.text(action_ids), self.format))

    def __call__(self, tree: RolloutTree) -> Rewards:
        """Returns the rewards; ``reasoning`` is NaN without a score and for leaves whose environment failed."""
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
        """Returns the judge's report with ``wait_seconds``."""
        return {**self.judge.report(), "wait_seconds": self.waited}


def candidate(step: TurnInContext, text: str, form: Format) -> Candidate:
    """Returns the question to a judge about the reply ``text`` at a demonstrated turn.

    The reference is the demonstrated reasoning or, without it, the text of the demonstration beside its calls. The
    reply's thinking and text are compared with the reference. A reply that cannot be parsed has no calls, and its
    thinking is the part that can be separated.

    Raises:
        InputError: the demonstration contains its calls as text, and they are not in the format ``form``.
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
    """Returns everything in the reply except its calls, and the calls."""
    try:
        reply = PARSERS[form](text, step.tools)
        return "\n\n".join(filter(None, (reply.thinking, reply.content))), reply.calls
    except ToolCallError:
        pass
    try:
        return split_thinking(text)[0] or text, None
    except ToolCallError:
        return text, None
