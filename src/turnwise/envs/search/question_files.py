"""Reads the published question files of HotpotQA, 2WikiMultiHopQA, MuSiQue and Bamboogle.

The keys of a record decide its format. So original files, Hugging Face exports (Parquet, or JSON inside text) and
FlashRAG's JSON lines can be read:

- HotpotQA, 2WikiMultiHopQA: ``question``, ``answer``, ``context``, ``supporting_facts``;
- MuSiQue: ``question``, ``answer``, ``answer_aliases``, ``paragraphs``, ``question_decomposition``; the unanswerable
  questions of the full version are left out;
- Bamboogle: ``Question``, ``Answer``, no pages;
- FlashRAG's edition of any of them: ``question``, ``golden_answers``, no pages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from turnwise.envs.data_files import cleaned, read_data_file
from turnwise.envs.search.pages_and_questions import Fact, Page, Question
from turnwise.errors import InputError

_FORMATS = "HotpotQA, 2WikiMultiHopQA, MuSiQue, Bamboogle or FlashRAG"


# exceptions that reading a record may raise if the record is not in the format that its keys suggest
_BROKEN = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, StopIteration)


def read_questions(path: str | Path, key: str) -> tuple[list[Question], list[Page]]:
    """Returns the questions in a file, in the order of the file and without duplicates, and the pages in the file.

    ``key`` is the configuration key that names the file, for error messages.

    Raises:
        InputError: the file cannot be read, a record has none of the formats, or the file contains no usable question.
    """
    questions: dict[str, Question] = {}
    pages: list[Page] = []
    for place, record in read_data_file(path, key):
        try:
            found = _question(record)
        except _BROKEN as error:
            raise InputError(
                f"{place}: the record is not in the format of {_FORMATS} ({type(error).__name__}: {error}); correct or "
                "remove the record"
            ) from error
        if found is not None:
            questions.setdefault(found[0].key, found[0])
            pages += found[1]
    if not questions:
        raise InputError(f"{path}: the file contains no question; {key} must be a file of {_FORMATS}")
    return list(questions.values()), pages


def read_pages(path: str | Path, key: str) -> list[Page]:
    """Returns the pages in a corpus file.

    A record has either ``title`` and ``text`` (as in DPR), or ``contents``, whose first line is the title.

    Raises:
        InputError: the file cannot be read, a record is not a page, or the file contains no page.
    """
    pages = []
    for place, record in read_data_file(path, key):
        title, text = record.get("title"), record.get("text")
        if isinstance(record.get("contents"), str) and not isinstance(text, str):
            title, _, text = record["contents"].partition("\n")
        if not isinstance(title, str) or not isinstance(text, str) or not title.strip():
            raise InputError(
                f"{place}: a page needs a text under each of the keys title and text, or a text under contents whose "
                f"first line is the title; got the keys {sorted(map(str, record))}"
            )
        pages.append(Page(title.strip().strip('"'), (text,)))
    if not pages:
        raise InputError(f"{path}: the file contains no page; {key} must be a file of records with title and text")
    return pages


def _question(record: Mapping[str, Any]) -> tuple[Question, list[Page]] | None:
    """Returns the question and the pages in a record; None if the record says that the question is unanswerable."""
    if "paragraphs" in record:
        return _musique(record)
    if "supporting_facts" in record and "context" in record:
        return _hotpot(record)
    if "golden_answers" in record:
        answers = [str(answer) for answer in _value(record["golden_answers"])]
        return _made("flashrag", record["question"], answers, ()), []
    if "Question" in record and "Answer" in record:
        return _made("bamboogle", record["Question"], [record["Answer"]], ()), []
    raise KeyError(
        f"none of the keys paragraphs, supporting_facts, golden_answers, Question; got {sorted(map(str, record))}"
    )


def _hotpot(record: Mapping[str, Any]) -> tuple[Question, list[Page]]:
    pages = {}
    for title, sentences in _pairs(record["context"], "title", "sentences", "content"):
        pages[title] = Page(title, tuple(map(str, sentences)))
    evidence = []
    for title, number in _pairs(record["supporting_facts"], "title", "sent_id"):
        sentences = pages[title].sentences
        # some published sentence numbers lie beyond the end of the page
        at = int(number) if 0 <= int(number) < len(sentences) else 0
        evidence.append((title, sentences[at]))
    kind = str(record.get("type") or "hotpot")
    return _made(kind, record["question"], [record["answer"]], evidence), list(pages.values())


def _musique(record: Mapping[str, Any]) -> tuple[Question, list[Page]] | None:
    if record.get("answerable") is False:
        return None
    paragraphs = _value(record["paragraphs"])
    pages = {int(p["idx"]): Page(str(p["title"]), (str(p["paragraph_text"]),)) for p in paragraphs}
    steps = [step["paragraph_support_idx"] for step in _value(record.get("question_decomposition") or [])]
    used = [int(i) for i in steps if i is not None] or [int(p["idx"]) for p in paragraphs if p.get("is_supporting")]
    evidence = [(pages[i].title, pages[i].text) for i in used]
    answers = [record["answer"], *(_value(record.get("answer_aliases")) or ())]
    return _made(f"hop{len(used)}", record["question"], answers, evidence), list(pages.values())


def _made(kind: str, text: Any, answers: Sequence[Any], evidence: Sequence[Fact]) -> Question:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the question must be text, got {text!r}")
    if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise ValueError(f"the answers must be text, got {answers!r} (published test files contain no answers)")
    text, answers = cleaned(text).strip(), [cleaned(answer).strip() for answer in answers]
    if not text or not all(answers):
        raise ValueError("the question or an answer contains only control characters")
    facts = tuple((cleaned(title).strip(), cleaned(sentence).strip()) for title, sentence in evidence)
    return Question(kind, text, tuple(dict.fromkeys(answers)), facts)


def _pairs(value: Any, *keys: str) -> list[tuple[str, Any]]:
    """Returns a list of pairs from ``[[a, b], ...]`` or ``{a: [...], b: [...]}``, as values or as JSON text."""
    value = _value(value)
    if isinstance(value, Mapping):
        second = next(key for key in keys[1:] if key in value)
        return list(zip(map(str, value[keys[0]]), value[second], strict=True))
    return [(str(first), second) for first, second in value]


def _value(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
