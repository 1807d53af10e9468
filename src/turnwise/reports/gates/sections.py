"""Defines reports whose sections are computed when they are first read, because a table needs only a few sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from turnwise.files import KeptValues


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


class KeptSections(Mapping[str, Any]):
    """The report that ``read`` returns, as a mapping from the name of a section to its content. A section is cached in
    a file as a whole, with all its subsections.

    Args:
        read: function that reads the data and returns the report. It is called at once if the cache is empty, so that
            unusable data raise an error early. Otherwise it is called when a section is missing in the cache.
        kept: the cache, a mapping from the name of a section to its content.
    """

    def __init__(self, read: Callable[[], Sections], kept: KeptValues) -> None:
        self._read, self._kept = read, kept
        if not kept:
            _ = self._report

    @cached_property
    def _report(self) -> Sections:
        return self._read()

    def __getitem__(self, name: str) -> Any:
        if name not in self._kept:
            found = self._report[name]
            self._kept[name] = whole(found) if isinstance(found, Sections) else found
            self._kept.write()
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._report)

    def __len__(self) -> int:
        return len(self._report)


def whole(report: Mapping[str, Any]) -> dict[str, Any]:
    return {name: whole(found) if isinstance(found, Sections) else found for name, found in report.items()}
