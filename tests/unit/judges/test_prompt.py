"""What is asked, and which answers count."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from turnwise.judges.judge import Candidate
from turnwise.judges.prompt import AnswerError, question, read_score, repair, response_format
from turnwise.judges.rubric import load_rubric
from turnwise.types import ToolCall


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


@pytest.mark.parametrize("text", ["```json" + "\n" * 20_000 + '{"score', "```" * 20_000, "```json" + " }" * 20_000])
def test_a_block_that_does_not_close_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(AnswerError, match="not one JSON object"):
        read_score(text)
    assert time.process_time() - began < 1


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


def test_true_calls_are_shown_one_a_line(candidate: Callable[..., Candidate]) -> None:
    calls = (ToolCall("f", {"b": [1], "a": "x"}), ToolCall("g", {}))
    user = question(load_rubric("tool_use_v1"), candidate(reference_calls=calls), "c0de")[1]["content"]
    assert '\n| {"arguments": {"a": "x", "b": [1]}, "name": "f"}\n| {"arguments": {}, "name": "g"}\n<<<END true' in user


def test_a_repair_shows_the_answer_and_what_was_wrong_with_it() -> None:
    with pytest.raises(AnswerError) as caught:
        read_score("no " * 1000)
    messages = repair([{"role": "user", "content": "q"}], "no " * 1000, caught.value)
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert len(messages[1]["content"]) == 500
    assert "not one JSON object" in messages[2]["content"]


def test_the_server_is_asked_for_the_schema() -> None:
    schema = response_format("json_schema")["response_format"]["json_schema"]["schema"]
    assert schema["required"] == ["score"]
    assert response_format("json_object") == {"response_format": {"type": "json_object"}}
    assert response_format("none") == {}
