"""What is asked, which answers count, the fence around untrusted text, and the scale."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.judges.judge import (
    PREFIX,
    AnswerError,
    Candidate,
    fenced,
    load_rubric,
    neutral,
    question,
    read_score,
    snap,
)

HOSTILE = st.text() | st.text(alphabet="<>|[]/INSTsbeos_ \n\r\x0b\u2028\u200b\uff5cBEGINEND reply0a")


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
    system, user = question(load_rubric("tool_use_v1"), asked, "c0de")
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
