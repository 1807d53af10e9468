"""A judge's score of every rollout beside its reward: asked while rollouts are still running, read when they are all done."""

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

NOT_SUMS = ("calls_per_s", "tokens_per_s", "latency_p50", "latency_p95")  # of a judge's report: the rest adds up


@dataclass(slots=True)
class Judged:
    """The rewards of ``reward`` with the score of a judge as ``reasoning``; ``total`` stays what it was.

    :meth:`ask` puts the question of one reply, and calling with a finished tree waits for its answers. A reply that was not
    asked about is asked about then. Equal replies to one state are one question, and questions belong to one collection: a
    tree takes those of its state with it.

    Args:
        reward: the outcome, of trees whose rollouts are one action.
        judge: gives the scores.
        steps: the demonstrated turns by the ids of their states: conversation, tools, rationale and calls.
        text: an action's ids as everything that was written, thinking included.
        format: how calls are written, in replies and in demonstrations that hold them as text.
    """

    reward: Reward
    judge: Judge
    steps: Mapping[str, TurnInContext]
    text: Callable[[Sequence[int]], str]
    format: Format = "hermes"
    waited: float = field(default=0.0, init=False)  # s waited for answers after all rollouts had ended
    _asked: dict[str, dict[tuple[int, ...], Future[float | None]]] = field(default_factory=dict, init=False, repr=False)

    def prove(self, state: State) -> str | None:
        """Asks about the demonstrated reply of one state, if the judge can fail; returns what the user should know of the answer.

        Raises:
            InputError: the judge gives no score, or the demonstrated action is not in ``format``.
        """
        prove = getattr(self.judge, "prove", None)
        return prove(candidate(self.steps[state.id], self.text(state.expert_ids), self.format)) if prove else None

    def ask(self, state: State, action_ids: Sequence[int]) -> None:
        """Asks about a reply, unless it was asked about before; returns at once.

        Raises:
            InputError: the demonstrated action is not in ``format``.
        """
        asked = self._asked.setdefault(state.id, {})
        key = tuple(action_ids)
        if key not in asked:
            asked[key] = self.judge.submit(candidate(self.steps[state.id], self.text(action_ids), self.format))

    def __call__(self, tree: RolloutTree) -> Rewards:
        """``reasoning`` is NaN if the judge had no score, and for leaves whose environment failed."""
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
        """The judge's report, and ``wait_seconds``."""
        return {**self.judge.report(), "wait_seconds": self.waited}


def candidate(step: TurnInContext, text: str, form: Format) -> Candidate:
    """Returns the question to a judge about the reply ``text`` at a demonstrated turn.

    The reference is the demonstrated reasoning, else the text of the demonstration beside its calls. The reply's thinking and
    text are compared with it. A reply that does not parse has no calls, and its thinking is the part that can be separated.

    Raises:
        InputError: the demonstrated calls stand in the text and are not in the format ``form``.
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
    """Returns everything in the reply but its calls, and the calls."""
    try:
        reply = PARSERS[form](text, step.tools)
        return "\n\n".join(filter(None, (reply.thinking, reply.content))), reply.calls
    except ToolCallError:
        pass
    try:
        return split_thinking(text)[0] or text, None
    except ToolCallError:
        return text, None
