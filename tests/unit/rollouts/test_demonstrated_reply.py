"""Replies of a dialogue held against the demonstrated one: strict, tool-call and similarity verifiers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from turnwise.rollouts.environment_steps import Answers
from turnwise.rollouts.verdicts import Anchored, Episodes, Verdicts, similarity
from turnwise.types import Pivot, State, Task, Turn

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
    return Anchored(**how)(state, Turn(-1, [1], [0.0], made, truncated=truncated))


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


def test_a_reply_that_was_cut_off_is_neither() -> None:
    assert judged(BOOK, BOOK, truncated=True) == (False, False)


def test_at_a_pivot_the_rule_is_the_argument_comparison_unless_another_is_chosen() -> None:
    state = State("d#t0", Task("", "d", "train", {"tools": TOOLS}), (1,), expert=BOOK, pivot=Pivot())

    def at_pivot(made: str, expert: str = BOOK, truncated: bool = False, **how: Any) -> tuple[bool, bool]:
        return Anchored(**how)(replace(state, expert=expert), Turn(-1, [1], [0.0], made, truncated=truncated))

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
    with pytest.raises(ValueError, match="word_overlap"):
        Anchored(word_overlap=0.8)


def test_similarity_is_one_less_the_edit_distance_over_the_longer_length() -> None:
    assert similarity("a b c d", "a x c") == pytest.approx(1 - 2 / 4)
    assert similarity("", "") == 1.0


def test_verdicts_of_a_dialogue_are_written_on_the_turn_and_ask_no_environment() -> None:
    episodes: Any = Episodes(None)  # type: ignore[arg-type]
    verdicts = Verdicts(episodes, Anchored())
    state = State("d#t0", Task("", "d", "train", {"tools": TOOLS}), (1,), expert=BOOK)
    turns = [Turn(-1, [1], [0.0], text, truncated=cut) for text, cut in ((BOOK, False), (BOOK, True), (NOTE, False))]
    for turn in turns:
        asyncio.run(verdicts.judge(state, turn, Answers(0, None), False))
    assert [(turn.info["functional"], turn.info["strict"]) for turn in turns] == [(1.0, 1.0), (0.0, 0.0), (0.0, 0.0)]
    with pytest.raises(ValueError, match="d#t1"):
        asyncio.run(verdicts.judge(State("d#t1", state.task, (1,)), turns[0], Answers(0, None), False))
