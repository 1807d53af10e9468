"""Generated Markdown put into a file, whole or between two marks of a page that people write."""

from __future__ import annotations

from pathlib import Path

from turnwise.errors import InputError
from turnwise.files import whole


def write_section(path: Path, text: str, section: str | None = None) -> None:
    """Write ``text`` to ``path``, or only between ``<!-- table:section -->`` and ``<!-- /table:section -->`` there.

    Raises:
        InputError: when the page does not hold the two marks, each once and in this order.
    """
    if section is not None:
        begin, end = f"<!-- table:{section} -->", f"<!-- /table:{section} -->"
        page = path.read_text(encoding="utf-8") if path.exists() else ""
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise InputError(f"{path}: needs a line '{begin}' and below it a line '{end}', each once")
        text = f"{page[: page.index(begin)]}{begin}\n\n{text}\n{page[page.index(end) :]}"
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
