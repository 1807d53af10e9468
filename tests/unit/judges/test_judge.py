"""Prompts and answers of judging models, and the offline judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import reference_rationales

from turnwise.data.trajectories import read_trajectories
from turnwise.data.turns_in_context import steps_of
from turnwise.judges.judge import (
    PREFIX,
    AnswerError,
    Candidate,
    fenced,
    judge_question,
    load_rubric,
    neutral,
    read_score,
    snap,
)
from turnwise.judges.offline import OfflineJudge, grade, offline_grades
from turnwise.types import ToolCall

# -- prompts and answers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ('{"score": 0.75}', 0.75),
        ('  {"score": 1}\n', 1.0),
        ('{"score": 0.9, "why": "style"}', 0.9),
        ('```json\n{"score": 0.5}\n```', 0.5),
        ('<think>{"score": 0.0} is too low</think>\n{"score": 0.25}', 0.25),
    ],
)
def test_scores_are_read(answer: str, score: float) -> None:
    assert read_score(answer) == score


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("", "invalid"),
        ("0.75", "invalid"),
        ('I give {"score": 0.75}', "invalid"),
        ('{"score": 0.75} is my answer', "invalid"),
        ('{"score": "0.75"}', "invalid"),
        ('{"score": true}', "invalid"),
        ('{"score": null}', "invalid"),
        ('{"grade": 1}', "invalid"),
        ('[{"score": 1}]', "invalid"),
        ('{"score": 0, "score": 1}', "invalid"),
        ('{"score": 1', "invalid"),
        ('<think>{"score": 1.0}', "invalid"),
        ('{"score": 7}', "out_of_range"),
        ('{"score": -0.1}', "out_of_range"),
        ('{"score": 1e999}', "out_of_range"),
        ('{"score": NaN}', "out_of_range"),
    ],
)
def test_everything_else_is_no_score(answer: str, kind: str) -> None:
    with pytest.raises(AnswerError) as caught:
        read_score(answer)
    assert caught.value.kind == kind


def test_a_question_holds_the_rubric_and_every_section(candidate: Callable[..., Candidate]) -> None:
    prompt = (
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "42"},
    )
    asked = candidate(
        prompt=prompt, text="so it is 42", reference=None, reference_calls=(), tools=({"name": "f", "parameters": {}},)
    )
    system, user = judge_question(load_rubric("tool_use_v1"), asked, "c0de")
    assert system == {"role": "system", "content": load_rubric("tool_use_v1").text}
    content = user["content"]
    assert content.startswith("The code of this request is c0de.\n")
    for name, line in {
        "tools": '| {"name": "f", "parameters": {}}',
        "conversation": '| [user]\n| hello\n| \n| [assistant]\n| {"function": {"arguments": {"a": 1}, "name": "f"}}\n| ',
        "reference_rationale": "| (no reference rationale",
        "true_calls": "| (no call)",
        "reply": "| so it is 42",
    }.items():
        assert content.split(f"<<<BEGIN {name} c0de>>>\n")[1].split(f"\n<<<END {name} c0de>>>")[0].startswith(line)


HOSTILE = st.text() | st.text(alphabet="<>|[]/INSTsbeos_ \n\r\x0b\u2028\u200b\uff5cBEGINEND reply0a")


@given(HOSTILE, st.text(alphabet="0123456789abcdef", min_size=16, max_size=16))
def test_every_line_of_the_text_carries_the_prefix(text: str, code: str) -> None:
    lines = fenced("reply", text, code).splitlines()  # which knows the exotic line ends too
    assert lines[0] == f"<<<BEGIN reply {code}>>>"
    assert lines[-1] == f"<<<END reply {code}>>>"
    assert len(lines) >= 3
    assert all(line.startswith(PREFIX) for line in lines[1:-1])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ümlaut, 漢字, emoji 🙂\ttab", "plain, ümlaut, 漢字, emoji 🙂\ttab"),
        ("<|im_end|>", "< |im_end| >"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("zero\u200bwidth \u202eleft", "zero\\u200bwidth \\u202eleft"),
        ("\U000e0041", "\\U000e0041"),
        ("[/INST]", "[ / I N S T ]"),
        ("<tool_call>{}</tool_call> <think>", "<tool_call>{}</tool_call> <think>"),
        ("1 << 2", "1 < < 2"),
    ],
)
def test_what_is_made_plain(text: str, shown: str) -> None:
    assert neutral(text) == shown


@pytest.mark.parametrize(
    ("score", "tier"),
    [
        *((1, 1.0), (0.96, 1.0), (0.95, 0.9), (0.83, 0.9), (0.825, 0.75), (0.7, 0.75), (0.63, 0.75), (0.625, 0.5)),
        *((0.38, 0.5), (0.375, 0.25), (0.126, 0.25), (0.125, 0.0), (0, 0.0)),
    ],
)
def test_scores_go_to_the_nearest_tier_and_half_way_to_the_lower(score: float, tier: float) -> None:
    assert snap(score) == tier


# -- the offline judge -------------------------------------------------------------------------------------------------


Make = Callable[..., Candidate]
DIMENSIONS = ("reasoning", "tools", "parameters", "conduct")

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


@pytest.mark.parametrize(
    ("changes", "expected", "score"),
    [
        # words: 2 x 4 / (6 + 4)
        ({"thinking": "I first find, then book it"}, (0.8, 1, 1, 1), 0.35 * 0.8 + 0.65),
        ({"thinking": ""}, (0, 1, 1, 1), 0.65),
        # no reference rationale: its weight goes to the others
        ({"reference": None}, (None, 1, 1, 1), 1.0),
        # one tool of two: 2 x 1 / (1 + 2); of its parameters 1 of 1 agree, of all 2 x 1 / (1 + 3)
        ({"calls": (FIND,)}, (1, 2 / 3, 0.5, 1), 0.5),  # 0.775 by the weights, at most 0.5: a tool is missing
        # the wrong order: the longest common subsequence has one
        ({"calls": (BOOK, FIND)}, (1, 0.5, 1, 1), 0.85),
        # one value of three differs: 2 x 2 / 6; 0.9167 by the weights, at most 0.75
        ({"calls": (FIND, ToolCall("book", {"train": 7, "seats": 3}))}, (1, 1, 2 / 3, 1), 0.75),
        # a surplus parameter: 2 x 3 / 7
        ({"calls": (FIND, ToolCall("book", {**BOOK.arguments, "class": 1}))}, (1, 1, 6 / 7, 1), 0.75),
        # 2 is not "2", and true is not 1
        ({"calls": (FIND, ToolCall("book", {"train": 7, "seats": "2"}))}, (1, 1, 2 / 3, 1), 0.75),
        # a tool that is not on offer: at most 0.25
        ({"calls": (FIND, BOOK, ToolCall("fly", {}))}, (1, 0.8, 1, 2 / 3), 0.25),
        # one that is, and was not wanted
        ({"calls": (FIND, BOOK, ToolCall("stop", {}))}, (1, 0.8, 1, 2 / 3), 0.35 + 0.24 + 0.25 + 0.2 / 3),
        # the same call twice: parameters 2 x 3 / 4 + ..., of 1 + 1 + 2 and 1 + 2
        ({"calls": (FIND, FIND, BOOK)}, (1, 0.8, 6 / 7, 2 / 3), 0.75),
        # it does not parse
        ({"calls": None}, (1, 0, 0, 0), 0.35),
        ({"calls": None, "reference": None}, (None, 0, 0, 0), 0.0),
        # nothing to call, and nothing called
        ({"calls": (), "reference_calls": ()}, (1, 1, 1, 1), 1.0),
        # nothing to call, and yet: everything about the call is surplus
        ({"calls": (FIND,), "reference_calls": ()}, (1, 0, 0, 0), 0.35),
        ({"calls": ()}, (1, 0, 0, 0), 0.35),
    ],
)
def test_grades_worked_by_hand(
    reply: Make, changes: dict[str, object], expected: tuple[float | None, ...], score: float
) -> None:
    by_hand = {name: value for name, value in zip(DIMENSIONS, expected, strict=True) if value is not None}
    assert offline_grades(reply(**changes)) == pytest.approx(by_hand)
    assert grade(reply(**changes)) == pytest.approx(score)


def scores(replies: list[Candidate], **settings: int) -> list[float]:
    judge = OfflineJudge(noise=0.3, **settings)
    return [judge.score(each) for each in replies]


def test_noise_depends_on_the_content_and_the_seed_alone(reply: Make) -> None:
    replies = [reply(thinking=f"first find, then book {n}", text=f"{n}") for n in range(50)]
    first = scores(replies)
    assert scores(replies[::-1]) == first[::-1]
    assert scores(replies, seed=1) != first
    renamed = [reply(id="other", thinking=f"first find, then book {n}", text=f"{n}") for n in range(50)]
    assert scores(renamed) == first


# -- rationales --------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    """Four turns, the last of which has reasoning."""
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    messages = [
        {"role": "user", "content": "one and two?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Three."},
    ]
    other = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Good day."},
        {"role": "user", "content": "bye"},
        {"role": "assistant", "content": "<think>own</think>Bye."},
    ]
    rows: list[dict[str, Any]] = [{"id": "a", "messages": messages, "tools": [tool]}, {"id": "b", "messages": other}]
    path = tmp_path / "demos.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def because(messages: Any) -> str:
    """What the endpoint says: the last line of the step that it was shown."""
    step = messages[1]["content"].split("<<<BEGIN step ")[1].split("<<<END")[0]
    return f"<think>hm</think> because of {step.splitlines()[-1]}"


def rationales(path: Path) -> list[str | None]:
    return [step.rationale for trajectory in read_trajectories(path).trajectories for step in steps_of(trajectory)]


def test_turns_get_their_rationales_and_only_missing_ones_are_asked_for_again(
    judge_server: ModuleType, demos: Path, tmp_path: Path
) -> None:
    into = tmp_path / "reasoned.jsonl"
    with judge_server.serve(lambda body, nth: "404" if "hello" in str(body) else None, because) as server:
        command = [str(demos), "--url", server.url, "--model", "m", "--cache", str(tmp_path / "cache.sqlite")]
        command += ["--into", str(into)]
        assert reference_rationales.main(command) == 1
        called = 'because of | {"function": {"arguments": {"a": 1, "b": 2}, "name": "add"}, "type": "function"}'
        assert rationales(into) == [called, "because of | Three.", None, "own"]
        shown = next(body["messages"][1]["content"] for body in server.bodies if "Three." in str(body))
        assert "| 3\n<<<END conversation" in shown
        server.fault = lambda body, nth: None
        for _ in range(2):
            assert reference_rationales.main(command) == 0
            assert rationales(into) == [called, "because of | Three.", "because of | Good day.", "own"]
            assert server.calls == 4
