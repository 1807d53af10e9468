"""Writes tables as Markdown, as a whole file or between two marks in an existing file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from turnwise.errors import InputError
from turnwise.files import atomic_write


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def facts(values: Mapping[str, object]) -> str:
    """Returns a Markdown table with an empty header and a row for each (name, value) of ``values``."""
    return table(["", ""], [*values.items()])


def cell(text: str) -> str:
    """Returns ``text`` as one line, escaped for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def write_section(
    path: Path, text: str, section: str | None = None, pictures: Mapping[Path, str] | None = None
) -> None:
    """Writes ``text`` to ``path``. If ``section`` is given, only the text between the marks ``<!-- table:section -->``
    and ``<!-- /table:section -->`` is replaced.

    Args:
        pictures: path of an image file -> title of the image. The images are shown above the text. An image that the
            rest of the file already shows is left out.

    Raises:
        InputError: the file does not contain each of the two marks exactly once, in this order.
    """
    above, below = "", ""
    if section is not None:
        begin, end = f"<!-- table:{section} -->", f"<!-- /table:{section} -->"
        page = path.read_text(encoding="utf-8") if path.exists() else ""
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
            raise InputError(
                f"{path}: the file must contain the line '{begin}' once and, below it, the line '{end}' once"
            )
        above, below = f"{page[: page.index(begin)]}{begin}\n\n", f"\n{page[page.index(end) :]}"
    links = {Path(os.path.relpath(at, path.parent)).as_posix(): title for at, title in (pictures or {}).items()}
    shown = [f"![{title}]({link})\n\n" for link, title in links.items() if f"]({link})" not in above + below]
    with atomic_write(path) as part:
        part.write_text(above + "".join(shown) + text + below, encoding="utf-8")
