"""Nothing inside a section can look like the end of it, or like a turn of the conversation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.judges.untrusted_text import PREFIX, fenced, neutral, new_code

HOSTILE = st.text() | st.text(alphabet="<>|[]/INSTsbeos_ \n\r\x0b\u2028\u200b\uff5cBEGINEND reply0a")


@given(HOSTILE, st.text(alphabet="0123456789abcdef", min_size=16, max_size=16))
def test_every_line_of_the_text_carries_the_prefix(text: str, code: str) -> None:
    lines = fenced("reply", text, code).splitlines()  # which knows the exotic line ends too
    assert lines[0] == f"<<<BEGIN reply {code}>>>"
    assert lines[-1] == f"<<<END reply {code}>>>"
    assert len(lines) >= 3
    assert all(line.startswith(PREFIX) for line in lines[1:-1])


@given(HOSTILE)
def test_neutral_text_holds_no_control_token_and_stays_as_it_is(text: str) -> None:
    shown = neutral(text)
    assert not any(token in shown.lower() for token in ("<|", "|>", "<<", ">>", "[inst]", "</s>", "<end_of_turn>"))
    assert neutral(shown) == shown


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


def test_codes_do_not_repeat() -> None:
    codes = {new_code() for _ in range(1000)}
    assert len(codes) == 1000
    assert all(len(code) == 16 for code in codes)
