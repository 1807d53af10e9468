"""What others wrote, on a terminal and in messages."""

from __future__ import annotations

import base64
import io

import pytest
from rich.table import Table

from turnwise.console import Terminal
from turnwise.files import parse_json
from turnwise.text import plain, said
from turnwise.training.progress import Phases

KEY = "k-7Q2m_left.right+9"
MARKUP = "[/red] [/INST] [bold]loud[/bold] :smiley: [link=http://x]y[/link]"


def test_control_characters_are_escaped_and_lines_stay_lines() -> None:
    assert plain("a\tb\nc\x1b[2Jd\r\x07\x9b\u202e\ud800é") == "a\tb\nc\\x1b[2Jd\\r\\x07\\x9b\\u202e\\ud800é"
    assert plain("x" * 30, most=10).startswith("x" * 10 + "...") and "30" in plain("x" * 30, most=10)


@pytest.mark.parametrize("text", [MARKUP, "\x1b]0;title\x07", "\ud800", "[/"])
def test_data_neither_formats_nor_stops_a_terminal(text: str) -> None:
    """In lines, table cells, titles, headers and the progress bar; a real stream has to encode it."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Terminal(file=stream, width=200, force_terminal=True)
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    console.print(text, table)
    with Phases(console) as phases, phases.phase(text, 1) as advance:
        phases.log(text)
        advance(1, note=text)
    quiet = Terminal(file=stream, width=200)
    with Phases(quiet) as phases, phases.phase(text, 1) as advance:
        advance(1, note=text)
    stream.flush()
    shown = stream.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert shown.count(plain(text)) >= 5
    assert "\x07" not in shown and "\x1b]" not in shown


@pytest.mark.parametrize(
    "body",
    [
        f"Authorization: Bearer {KEY}",
        f'{{"headers": {{"authorization": "Bearer {KEY}"}}}}',
        f"x{KEY}x",
        KEY[::-1],
        "Bearer another-token",
        "api_key=another-token",
        '{"x-api-key":"another-token"}',
        "sk-another-token",
        "Set-Cookie: session=another-token",
        base64.b64encode(b"another-token another-token 1").decode(),
        "http://me:another-token@host/",
        "y" * 4090 + KEY,
    ],
)
def test_no_key_of_what_a_server_says(body: str) -> None:
    for answer in (body, body.encode()):
        shown = said(answer, KEY)
        assert KEY not in shown and KEY[::-1] not in shown and "another-token" not in shown
        assert KEY[:8] not in shown and base64.b64encode(b"another-token")[:12].decode() not in shown


@pytest.mark.parametrize(
    "text", ['"\\ud800"', '{"a": ["\\udc00x"]}', "NaN", "[" * 100_000, "{", b'"\xed\xa0\x80"', b"\xff"]
)
def test_json_that_could_not_be_written_again_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"surrogate|JSON|deeply|codec|Expecting"):
        parse_json(text)
