"""Defines the pages of ``env=search`` and ``env=browse``, and the questions about these pages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnwise.envs.data_files import cleaned

Fact = tuple[str, str]
"""A fact as a pair: the title of the page that states the fact, and the sentence on this page that states the fact."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page. Its first sentence says what the page is about."""

    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


class Pages:
    """A collection of pages, which are found by number or by title.

    Pages with equal titles are merged into one page with all of their sentences. The constructor cleans all texts:
    control characters become blanks, and markers of chats and calls, such as ``<tool_call>``, are broken up.

    Raises:
        ValueError: there are no pages.
    """

    def __init__(self, pages: Iterable[Page]) -> None:
        found: dict[str, Page] = {}
        for page in pages:
            title = cleaned(page.title).strip()
            sentences = tuple(cleaned(sentence).strip() for sentence in page.sentences)
            known = found.get(title)
            if known is not None:
                sentences = known.sentences + tuple(s for s in sentences if s not in known.sentences)
            found[title] = Page(title, sentences)
        if not found:
            raise ValueError("the files contain no page to search")
        self.pages: Sequence[Page] = tuple(found.values())
        self._named: Mapping[str, Page] = {page.title.casefold(): page for page in self.pages}

    def __len__(self) -> int:
        return len(self.pages)

    def __iter__(self) -> Iterator[Page]:
        return iter(self.pages)

    def named(self, title: str) -> Page | None:
        """Returns the page with the given title, or None. Upper and lower case do not matter."""
        return self._named.get(title.strip().casefold())


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its right answers and its evidence."""

    kind: str
    text: str
    answers: tuple[str, ...]
    # the facts that are needed for the answer, in the order in which they can be found; empty if they are not known
    evidence: tuple[Fact, ...] = ()

    @property
    def titles(self) -> tuple[str, ...]:
        """Returns the titles of the pages with evidence, in order and without duplicates."""
        return tuple(dict.fromkeys(title for title, _ in self.evidence))

    @property
    def key(self) -> str:
        """Returns a hash of the question and its answers, which serves as the question's id."""
        return hashlib.sha256("\n".join([self.text, *self.answers]).encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def data(self) -> dict[str, Any]:
        """Returns the question as JSON values."""
        evidence = [list(fact) for fact in self.evidence]
        return {"kind": self.kind, "question": self.text, "answers": list(self.answers), "evidence": evidence}

    @staticmethod
    def of(data: Mapping[str, Any]) -> Question:
        """Returns the question that the data of a task of ``env=search`` or ``env=browse`` describes.

        Raises:
            ValueError: the data lacks a key.
        """
        try:
            evidence = tuple((str(title), str(sentence)) for title, sentence in data["evidence"])
            return Question(str(data["kind"]), str(data["question"]), tuple(map(str, data["answers"])), evidence)
        except (KeyError, TypeError) as error:
            raise ValueError(f"task data: a question needs kind, question, answers and evidence ({error})") from None
