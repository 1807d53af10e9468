"""Defines a report whose sections are computed when they are first read, because a table of a paper needs only a few of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Sections(Mapping[str, Any]):
    """A mapping from the name of a section to its content, which is computed when it is first read.

    Args:
        sections: name -> function that computes the section. The content of a section may itself be a ``Sections``.
    """

    def __init__(self, sections: Mapping[str, Callable[[], Any]]) -> None:
        self._sections = sections
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = self._sections[name]()
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def __len__(self) -> int:
        return len(self._sections)


def whole(report: Sections) -> dict[str, Any]:
    """Computes every section and returns the report as a dict."""
    return {name: whole(found) if isinstance(found, Sections) else found for name, found in report.items()}
