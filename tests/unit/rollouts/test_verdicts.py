"""Verdicts by demonstrated replies, and scores by judges."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.rollouts.playing import after

from turnwise.data.turns_in_context import TurnInContext, steps_of
from turnwise.judges.judge import Candidate
from turnwise.judges.offline import OfflineJudge
from turnwise.methods.awpo import Graded
from turnwise.rollouts.episodes import EnvironmentCalls, Episodes
from turnwise.rollouts.verdicts import AnchoredVerdict, JudgeVerdictReward, Verdicts, candidate
from turnwise.types import Pivot, RolloutTree, State, Task, ToolCall, Trajectory, Turn
from turnwise_worlds.household import HouseholdEnv

# -- demonstrated replies ----------------------------------------------------------------------------------------------


BOOK = '<tool_call>{"name": "book", "arguments": {"place": "Roma", "people": 2}}</tool_call>'
NOTE = '<tool_call>{"name": "note", "arguments": {"hour": 19}}</tool_call>'
TOOLS = [
    {
        "name": "book",
        "parameters": {"properties": {"place": {"type": "string"}, "people": {"type": "integer", "default": 2}}},
    },
    {"name": "note", "parameters": {"properties": {"hour": {"type": "integer"}}}},
]
WORDS = "one two three four five six seven eight nine ten"


def judged(made: str, expert: str, truncated: bool = False, **how: Any) -> tuple[bool, bool]:
    state = State("d#t0", Task("", "d", "train", {"tools": TOOLS}), (1,), expert=expert)
    return AnchoredVerdict(**how)(state, Turn(-1, [1], [0.0], made, truncated=truncated))


@pytest.mark.parametrize(
    ("made", "expert", "verdict"),
    [
        (BOOK + NOTE, BOOK + NOTE, (True, True)),
        (NOTE + BOOK, BOOK + NOTE, (True, False)),  # parallel calls have no order
        ("Sure." + BOOK, BOOK, (True, True)),  # text beside the calls is free
        (BOOK.replace(', "people": 2', ""), BOOK, (True, False)),  # its default
        (BOOK, BOOK + NOTE, (False, False)),
        (BOOK + BOOK, BOOK, (False, False)),
        (BOOK.replace("2", "3"), BOOK, (False, False)),
        (BOOK.replace('"place": "Roma"', '"place": 7'), BOOK, (False, False)),
        ("<tool_call>{", BOOK, (False, False)),
        ("It is booked.", BOOK, (False, False)),
        (WORDS, WORDS, (True, True)),
        (f"  {WORDS}\n", WORDS, (True, True)),
        (WORDS.upper(), WORDS, (True, False)),
        (WORDS.replace("ten", "TEN").replace("one", "a"), WORDS, (True, False)),  # 9 of 10 words
        (WORDS.replace("one two three", "a b c"), WORDS, (False, False)),  # 7 of 10
        (BOOK, WORDS, (False, False)),  # no call was demonstrated
    ],
)
def test_the_rule_follows_the_demonstrated_reply(made: str, expert: str, verdict: tuple[bool, bool]) -> None:
    assert judged(made, expert) == verdict


def test_at_a_pivot_the_rule_is_the_argument_comparison_unless_another_is_chosen() -> None:
    state = State("d#t0", Task("", "d", "train", {"tools": TOOLS}), (1,), expert=BOOK, pivot=Pivot())

    def at_pivot(made: str, expert: str = BOOK, truncated: bool = False, **how: Any) -> tuple[bool, bool]:
        return AnchoredVerdict(**how)(replace(state, expert=expert), Turn(-1, [1], [0.0], made, truncated=truncated))

    assert at_pivot(BOOK + NOTE) == (True, False)  # a further call is free
    assert at_pivot(BOOK.replace(', "people": 2', "")) == (False, False)  # all arguments are compared
    assert at_pivot(WORDS, "another text") == (True, False)
    assert (
        at_pivot(BOOK, "another text") == at_pivot(BOOK, truncated=True) == at_pivot("<tool_call>{") == (False, False)
    )
    assert at_pivot(WORDS, "another text", kind="similarity") == at_pivot(BOOK + NOTE, kind="calls") == (False, False)
    long = BOOK.replace("Roma", "one two three")
    assert at_pivot(long, long.replace("two three", "x y"), word_overlap=0.1) == (True, False)
    assert at_pivot(long, long.replace("two three", "x y"), word_overlap=0.3) == (False, False)
    assert judged(BOOK + NOTE, BOOK, kind="arguments") == (True, False)


def test_verdicts_of_a_dialogue_are_written_on_the_turn_and_ask_no_environment() -> None:
    episodes: Any = Episodes(None)  # type: ignore[arg-type]
    verdicts = Verdicts(episodes, AnchoredVerdict())
    state = State("d#t0", Task("", "d", "train", {"tools": TOOLS}), (1,), expert=BOOK)
    turns = [Turn(-1, [1], [0.0], text, truncated=cut) for text, cut in ((BOOK, False), (BOOK, True), (NOTE, False))]
    for turn in turns:
        asyncio.run(verdicts.judge(state, turn, EnvironmentCalls(0, None), False))
    assert [(turn.info["functional"], turn.info["strict"]) for turn in turns] == [(1.0, 1.0), (0.0, 0.0), (0.0, 0.0)]
    with pytest.raises(ValueError, match="d#t1"):
        asyncio.run(verdicts.judge(State("d#t1", state.task, (1,)), turns[0], EnvironmentCalls(0, None), False))


# -- episodes ----------------------------------------------------------------------------------------------------------


def test_an_episode_goes_on_from_the_longest_kept_beginning_and_is_independent() -> None:
    env = HouseholdEnv(horizon=9)
    (task,) = env.tasks("train", 1)
    episodes = Episodes(env)
    actions = ("look", "inventory", "look")
    first = after(episodes, task, actions)
    assert (first.turns, list(episodes.kept)) == (
        3,
        [(task.env, task.id, done) for done in ((), actions[:1], actions[:2], actions)],
    )
    kept = episodes.kept[task.env, task.id, actions[:2]]
    other = after(episodes, task, ("look", "inventory", "inventory"))
    assert other.turns == 3 and kept.turns == 2 and episodes.kept[task.env, task.id, actions[:2]] is kept
    first.step("look")
    assert after(episodes, task, actions).turns == 3  # what a rollout does leaves the kept one alone
    assert after(episodes, task, ()).turns == 0


# -- judges ------------------------------------------------------------------------------------------------------------


CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
ASKED_TOOLS = ({"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {}}}}},)
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
    return {step.id: step for step in steps_of(Trajectory("d", messages, ASKED_TOOLS))}


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
    assert asked.tools == ASKED_TOOLS
    later = candidate(THOUGHT["d#t1"], "7", "hermes")
    assert [message["role"] for message in later.prompt] == ["user", "assistant", "tool"]
    assert (later.reference, later.reference_calls, later.calls) == ("it is 7", (), ())


def test_scores_stand_beside_the_outcome_by_leaf() -> None:
    judged = JudgeVerdictReward(Graded(), OfflineJudge(), THOUGHT, text_of)
    group = tree(f"<think>they ask for Paris</think>{CALL}", CALL, "no")
    rewards = judged(group)
    assert rewards["total"] == rewards["outcome"] == Graded()(group)["total"]
    # all right: 1; without the reasoning 65 of 100 points, the nearest tier below; nothing: 0
    assert rewards["reasoning"] == [1.0, 0.75, 0.0]


def test_all_is_asked_before_anything_is_awaited_and_failures_are_nan() -> None:
    judge = Slow()
    judged = JudgeVerdictReward(Graded(), judge, THOUGHT, text_of)
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
