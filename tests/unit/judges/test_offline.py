"""The rubric as arithmetic, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from turnwise.judges.judge import Candidate
from turnwise.judges.offline import Grades, OfflineJudge, dimensions, grade
from turnwise.types import ToolCall

Make = Callable[..., Candidate]

BOOK = ToolCall("book", {"train": 7, "seats": 2})
FIND = ToolCall("find", {"town": "Ulm"})
TOOLS = ({"name": "find", "parameters": {}}, {"type": "function", "function": {"name": "book"}}, {"name": "stop"})


@pytest.fixture
def reply(candidate: Make) -> Make:
    """A perfect reply, but for the changes."""

    def make(**changes: object) -> Candidate:
        perfect = {"thinking": "first find, then book", "reference": "First find, then book.", "tools": TOOLS}
        return candidate(**{**perfect, "calls": (FIND, BOOK), "reference_calls": (FIND, BOOK), **changes})

    return make


def test_the_reference_itself_is_perfect(reply: Make) -> None:
    assert dimensions(reply()) == Grades(1.0, 1.0, 1.0, 1.0)
    assert OfflineJudge()([reply()]) == [1.0]


@pytest.mark.parametrize(
    ("changes", "expected", "score"),
    [
        # words: 2 x 4 / (6 + 4)
        ({"thinking": "I first find, then book it"}, Grades(0.8, 1, 1, 1), 0.35 * 0.8 + 0.65),
        ({"thinking": ""}, Grades(0, 1, 1, 1), 0.65),
        # no reference rationale: its weight goes to the others
        ({"reference": None}, Grades(None, 1, 1, 1), 1.0),
        # one tool of two: 2 x 1 / (1 + 2); of its parameters 1 of 1 agree, of all 2 x 1 / (1 + 3)
        ({"calls": (FIND,)}, Grades(1, 2 / 3, 0.5, 1), 0.5),  # 0.775 by the weights, at most 0.5: a tool is missing
        # the wrong order: the longest common subsequence has one
        ({"calls": (BOOK, FIND)}, Grades(1, 0.5, 1, 1), 0.85),
        # one value of three differs: 2 x 2 / 6; 0.9167 by the weights, at most 0.75
        ({"calls": (FIND, ToolCall("book", {"train": 7, "seats": 3}))}, Grades(1, 1, 2 / 3, 1), 0.75),
        # a surplus parameter: 2 x 3 / 7
        ({"calls": (FIND, ToolCall("book", {**BOOK.arguments, "class": 1}))}, Grades(1, 1, 6 / 7, 1), 0.75),
        # 2 is not "2", and true is not 1
        ({"calls": (FIND, ToolCall("book", {"train": 7, "seats": "2"}))}, Grades(1, 1, 2 / 3, 1), 0.75),
        # a tool that is not on offer: at most 0.25
        ({"calls": (FIND, BOOK, ToolCall("fly", {}))}, Grades(1, 0.8, 1, 2 / 3), 0.25),
        # one that is, and was not wanted
        ({"calls": (FIND, BOOK, ToolCall("stop", {}))}, Grades(1, 0.8, 1, 2 / 3), 0.35 + 0.24 + 0.25 + 0.2 / 3),
        # the same call twice: parameters 2 x 3 / 4 + ..., of 1 + 1 + 2 and 1 + 2
        ({"calls": (FIND, FIND, BOOK)}, Grades(1, 0.8, 6 / 7, 2 / 3), 0.75),
        # it does not parse
        ({"calls": None}, Grades(1, 0, 0, 0), 0.35),
        ({"calls": None, "reference": None}, Grades(None, 0, 0, 0), 0.0),
        # nothing to call, and nothing called
        ({"calls": (), "reference_calls": ()}, Grades(1, 1, 1, 1), 1.0),
        # nothing to call, and yet: everything about the call is surplus
        ({"calls": (FIND,), "reference_calls": ()}, Grades(1, 0, 0, 0), 0.35),
        ({"calls": ()}, Grades(1, 0, 0, 0), 0.35),
    ],
)
def test_grades_worked_by_hand(reply: Make, changes: dict[str, object], expected: Grades, score: float) -> None:
    found = dimensions(reply(**changes))
    for name in ("reasoning", "tools", "parameters", "conduct"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), name
    assert grade(reply(**changes)) == pytest.approx(score)


def test_repeated_tools_are_matched_one_to_one(reply: Make) -> None:
    ulm, bonn = FIND, ToolCall("find", {"town": "Bonn"})
    swapped = reply(calls=(bonn, ulm), reference_calls=(ulm, bonn))
    assert dimensions(swapped).parameters == 1.0
    twice = reply(calls=(ulm, ulm), reference_calls=(ulm, bonn))
    assert dimensions(twice).parameters == pytest.approx(0.5)
    assert dimensions(twice).conduct == pytest.approx(0.5)


def test_noise_depends_on_the_content_and_the_seed_alone(reply: Make) -> None:
    replies = [reply(thinking=f"first find, then book {n}", text=f"{n}") for n in range(50)]
    first = OfflineJudge(noise=0.3)(replies)
    assert OfflineJudge(noise=0.3)(reversed(replies)) == first[::-1]
    assert OfflineJudge(noise=0.3, seed=1)(replies) != first
    renamed = [reply(id="other", thinking=f"first find, then book {n}", text=f"{n}") for n in range(50)]
    assert OfflineJudge(noise=0.3)(renamed) == first
