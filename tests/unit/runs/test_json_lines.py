"""JSON lines that are decoded together are those that are decoded one by one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnwise.errors import InputError
from turnwise.runs.archive import checked_lines, checked_rows

LINES = st.one_of(
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2).map(json.dumps),
    st.sampled_from(
        ["", "  ", "{", "}", '{"a": [1', "2]}", "[]", "1", '{"a": 1},{"b": 2}', '{"a": 1', '"b": 2}', "\x85"]
    ),
)


def came(read: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]] | str:
    """What is read, or what is said of the file."""
    try:
        return read()
    except InputError as error:
        return str(error)


@given(st.lists(LINES, max_size=6))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_those_of_the_lines(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    assert came(lambda: checked_rows(path)) == came(lambda: [row for _, row in checked_lines(path)])


def test_no_file_has_no_rows(tmp_path: Path) -> None:
    assert checked_rows(tmp_path / "rows.jsonl") == [] == list(checked_lines(tmp_path / "rows.jsonl"))
