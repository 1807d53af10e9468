"""Verdicts on the policy's actions: by the demonstrated reply, by the environment, and as scores of a judge.

A demonstrated reply judges a reply in dialogues without an environment. The environment judges a single action without
a step, as in PivotRL's local rollouts (arXiv:2603.21383). A judge, such as a language model, scores every rollout while
other rollouts are still running.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

from turnwise.data.match_calls import match_by_nemo_gym, match_calls, match_exactly
from turnwise.data.toolcalls import PARSERS, Format, ToolCallError, split_thinking
from turnwise.data.turns_in_context import TurnInContext
from turnwise.env import Session, environment_of, verifier_of
from turnwise.errors import InputError
from turnwise.judges.judge import Candidate, Judge
from turnwise.methods.reward import Reward, rewards_of
from turnwise.rollouts.episodes import EnvironmentCalls, Episodes
from turnwise.types import Rewards, RolloutTree, State, ToolCall, Turn

# -- verdicts by the demonstrated reply --------------------------------------------------------------------------------


Kind = Literal["strict", "calls", "similarity", "arguments"]


@dataclass(frozen=True, slots=True)
class AnchoredVerdict:
    """Compares a reply of the policy with the demonstrated reply and returns the verdicts ``functional`` and
    ``strict`` (our rules for PivotRL, arXiv:2603.21383, section 3.1).

    A reply is ``strict`` if it has the same calls in the same order as the demonstrated reply, or, without calls, the
    same text up to whitespace. For ``functional``, the calls must match the demonstrated calls one to one by name and
    arguments (``data.match_calls``); without demonstrated calls, the reply must have similar words and no call. Rows of
    a pivot file are judged by the rule of NeMo Gym, from which they come. A truncated reply is neither.

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

    def __call__(self, state: State, turn: Turn) -> tuple[bool, bool]:
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
            strict = match_exactly(made.calls, expected.calls)
        else:
            strict = made.content.split() == expected.content.split()
        kind = self.kind or ("arguments" if state.pivot else "calls" if expected.calls else "similarity")
        if kind == "strict":
            return strict, strict
        if kind == "arguments":
            return match_by_nemo_gym(made, expected, self.word_overlap), strict
        if kind == "calls":
            return match_calls(made.calls, expected.calls, tools), strict
        if bool(made.calls) != bool(expected.calls):
            return False, strict
        return similarity(turn.text, state.expert) >= self.threshold, strict


def similarity(made: str, expected: str) -> float:
    """1 minus the edit distance between two lists of words, divided by the length of the longer list. Case is ignored."""
    return float(Levenshtein.normalized_similarity(made.lower().split(), expected.lower().split()))


# -- verdicts by the environment ---------------------------------------------------------------------------------------


Verdict = tuple[bool, bool]
"""The verdicts on an action at a state with a demonstrated action: *functional*, whether it is as good as the
demonstrated action (PivotRL Eq. 6), and *strict*, whether it equals the demonstrated action (PivotRL Eq. 2).
"""


@dataclass(slots=True)
class Verdicts:
    """Judges actions and caches the verdicts, because many samples at one state are equal. ``dialogues`` judges replies in
    dialogues without an environment. Both verdicts on a truncated action are False.
    """

    episodes: Episodes
    dialogues: AnchoredVerdict = field(default_factory=AnchoredVerdict)
    kept: dict[tuple[str, str, bool], Verdict] = field(default_factory=dict)
    _under_way: dict[tuple[str, str, bool], asyncio.Task[Verdict]] = field(default_factory=dict)

    async def judge(self, state: State, turn: Turn, answers: EnvironmentCalls, threaded: bool) -> None:
        """Writes the verdicts ``functional`` and ``strict`` (0.0 or 1.0) into ``turn.info``. With ``threaded``, the
        environment's methods run in a thread of ``answers``. Equal actions at a state share one decision.

        Raises:
            EnvironmentFault: the environment failed.
        """
        if state.expert is None:
            raise ValueError(
                f"state {state.id!r} has no demonstrated action to compare with: use states=expert_turns or pivots"
            )
        key = state.id, turn.text, turn.truncated
        if key not in self.kept and not threaded:  # no other action is judged meanwhile, so that no task is needed
            self.kept[key] = await self._decision(state, turn, answers, threaded)
        elif key not in self.kept:
            if key not in self._under_way:
                decision = asyncio.ensure_future(self._decision(state, turn, answers, threaded))
                decision.add_done_callback(lambda _: self._under_way.pop(key, None))
                self._under_way[key] = decision
            self.kept[key] = await asyncio.shield(self._under_way[key])
        turn.info["functional"], turn.info["strict"] = map(float, self.kept[key])

    async def _decision(self, state: State, turn: Turn, answers: EnvironmentCalls, threaded: bool) -> Verdict:
        if not state.task.env:
            return self.dialogues(state, turn)
        if turn.truncated:
            return False, False
        call = partial(answers.call, threaded)
        async with AsyncExitStack() as held:
            async with answers.making(state.task, self.episodes.shared(state.task, state.actions)):
                if threaded:  # a session may hold a process, so it is made only when a thread is free
                    await held.enter_async_context(answers.free_threads)
                session = await self.episodes.after(state.task, state.actions, call)
            verdict: Verdict = await call(partial(self._decide, session, state, turn.text), session)
            return verdict

    def _decide(self, session: Session, state: State, action: str) -> Verdict:
        assert state.expert is not None
        environment = self.episodes.environment
        accepted = verifier_of(environment, state.task).accepts(session, action, state.expert)
        return accepted, environment_of(environment, state.task).same(action, state.expert)


# -- scores by a judge -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class JudgeVerdictReward:
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
            InputError: the judge gives no score.
        """
        prove = getattr(self.judge, "prove", None)
        return prove(candidate(self.steps[state.id], self.text(state.expert_ids), self.format)) if prove else None

    def ask(self, state: State, action_ids: Sequence[int]) -> None:
        """Submits the question about a reply, unless it was submitted before, and returns without waiting."""
        answers = self._asked.setdefault(state.id, {})
        key = tuple(action_ids)
        if key not in answers:
            answers[key] = self.judge.submit(candidate(self.steps[state.id], self.text(action_ids), self.format))

    def __call__(self, tree: RolloutTree) -> Rewards:
        rewards = rewards_of(self.reward, tree)
        leaves = tree.leaves()
        for leaf in leaves:
            self.ask(tree.state, tree.turns[leaf].action_ids)
        answers = self._asked.pop(tree.state.id, {})
        began = time.monotonic()
        scores = [answers[tuple(tree.turns[leaf].action_ids)].result() for leaf in leaves]
        self.waited += time.monotonic() - began
        reasoning = [
            math.nan if score is None or leaf in tree.invalid else score
            for leaf, score in zip(leaves, scores, strict=True)
        ]
        return {**rewards, "reasoning": reasoning}

    def report(self) -> dict[str, float]:
        return {**self.judge.report(), "wait_seconds": self.waited}


def candidate(step: TurnInContext, text: str, form: Format) -> Candidate:
    """Returns the question with which a judge scores a rollout's reply ``text`` at a demonstrated turn.

    Its reference is the rationale of the demonstrated turn, or without one the text of the demonstrated reply without
    its calls. If the reply cannot be parsed, the question has no calls.

    Raises:
        InputError: the demonstration contains its calls as text, and these calls are not in the format ``form``.
    """
    rationale, true = step.content, step.calls
    if not true:
        try:
            reply = PARSERS[form](step.content, step.tools)
        except ToolCallError as error:
            raise InputError(
                f"{step.id}: the demonstrated action is not in the format {form} ({error}): set reward.format to the "
                "demonstrations' format, or correct them"
            ) from error
        rationale, true = reply.content, reply.calls
    thinking, calls = _parts_for_verdict(text, step, form)
    return Candidate(
        id=step.id,
        prompt=step.prompt,
        text=text,
        thinking=thinking,
        calls=calls,
        reference=step.rationale or rationale.strip() or None,
        reference_calls=true,
        tools=step.tools,
    )


def _parts_for_verdict(text: str, step: TurnInContext, form: Format) -> tuple[str, tuple[ToolCall, ...] | None]:
    """The thinking and text of a reply, and its calls (None if the reply cannot be parsed)."""
    try:
        reply = PARSERS[form](text, step.tools)
        return "\n\n".join(filter(None, (reply.thinking, reply.content))), reply.calls
    except ToolCallError:
        pass
    try:
        return split_thinking(text)[0] or text, None
    except ToolCallError:
        return text, None
