"""A judge's score beside the reward: what is asked, when, and what becomes of answers that never come."""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import Future

import pytest

from turnwise.algo.rewards.graded import Graded
from turnwise.data.steps import TurnInContext, steps_of
from turnwise.judges.judge import Candidate, gather
from turnwise.judges.offline import OfflineJudge
from turnwise.rollouts.verdicts import Judged, candidate
from turnwise.types import RolloutTree, State, Task, ToolCall, Trajectory, Turn

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
TOOLS = ({"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {}}}}},)
SAID = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
PARIS = ToolCall("weather", {"city": "Paris"})


def steps(**spoken: object) -> dict[str, TurnInContext]:
    """The steps of one dialogue whose first turn is ``spoken``."""
    messages = (
        {"role": "user", "content": "weather in Paris"},
        {"role": "assistant", **spoken},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "it is 7"},
    )
    return {step.id: step for step in steps_of(Trajectory("d", messages, TOOLS))}


THOUGHT = steps(content="", reasoning_content="they ask for Paris", tool_calls=[SAID])


def tree(*texts: str) -> RolloutTree:
    """A group at the first turn. A letter is a token; what the reward reads is without thinking."""
    state = State("d#t0", Task("", "d", "train"), (1,), expert=CALL)
    turns = [Turn(-1, [ord(c) for c in text], [0.0] * len(text), text.rpartition("</think>")[2]) for text in texts]
    return RolloutTree(state, turns)


def text_of(ids: Iterable[int]) -> str:
    return "".join(map(chr, ids))


class Slow:
    """A judge whose answers are given by hand, later."""

    def __init__(self) -> None:
        self.questions: list[tuple[Candidate, Future[float | None]]] = []

    def submit(self, candidate: Candidate) -> Future[float | None]:
        self.questions.append((candidate, Future()))
        return self.questions[-1][1]

    def __call__(self, candidates: Iterable[Candidate]) -> list[float | None]:
        return gather(self, candidates)

    def report(self) -> dict[str, float]:
        return {"asked": len(self.questions)}

    def close(self) -> None:
        """Nothing is open."""


def test_a_question_holds_the_reply_whole_and_the_demonstration_in_its_parts() -> None:
    asked = candidate(THOUGHT["d#t0"], f"<think>Paris it is</think>so {CALL} now", "hermes")
    assert asked.prompt == ({"role": "user", "content": "weather in Paris"},)
    assert asked.text == f"<think>Paris it is</think>so {CALL} now"
    assert asked.thinking == "Paris it is\n\nso now"
    assert asked.calls == asked.reference_calls == (PARIS,)
    assert asked.reference == "they ask for Paris"
    assert asked.tools == TOOLS
    later = candidate(THOUGHT["d#t1"], "7", "hermes")
    assert [message["role"] for message in later.prompt] == ["user", "assistant", "tool"]
    assert (later.reference, later.reference_calls, later.calls) == ("it is 7", (), ())


@pytest.mark.parametrize(
    ("spoken", "reference"),
    [
        ({"content": f"<think>they ask</think>look {CALL}"}, "they ask"),
        ({"content": f"look {CALL}"}, "look"),
        ({"content": CALL}, None),
        ({"content": "look", "tool_calls": [SAID]}, "look"),
    ],
)
def test_the_reference_is_the_rationale_or_else_the_text_beside_the_calls(
    spoken: dict[str, object], reference: str | None
) -> None:
    asked = candidate(steps(**spoken)["d#t0"], "a", "hermes")
    assert (asked.reference, asked.reference_calls) == (reference, (PARIS,))


def test_scores_stand_beside_the_outcome_by_leaf() -> None:
    judged = Judged(Graded(), OfflineJudge(), THOUGHT, text_of)
    group = tree(f"<think>they ask for Paris</think>{CALL}", CALL, "no")
    rewards = judged(group)
    assert rewards["total"] == rewards["outcome"] == Graded()(group)["total"]
    # all right: 1; without the reasoning 65 of 100 points, the nearest tier below; nothing: 0
    assert rewards["reasoning"] == [1.0, 0.75, 0.0]


def test_all_is_asked_before_anything_is_awaited_and_failures_are_nan() -> None:
    judge = Slow()
    judged = Judged(Graded(), judge, THOUGHT, text_of)
    group = tree("a", "b", "a", "c")
    group.invalid.add(3)
    for turn in group.turns:
        judged.ask(group.state, turn.action_ids)
    assert [asked.text for asked, _ in judge.questions] == ["a", "b", "c"]  # equal replies are one question
    for (_, future), score in zip(judge.questions, (0.5, None, 1.0), strict=True):
        future.set_result(score)
    found = judged(group)["reasoning"]
    assert (found[0], found[2]) == (0.5, 0.5) and math.isnan(found[1]) and math.isnan(found[3])
    assert len(judge.questions) == 3
