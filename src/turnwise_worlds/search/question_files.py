"""Reads files of questions and pages, and scores answers against their references."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnwise.errors import InputError
from turnwise_worlds.data_files import cleaned, read_data_file
from turnwise_worlds.search.encyclopaedia import Fact, Page, Question

F1_FLOOR = 0.3  # TRACE (arXiv:2606.11119), App. E.1.2: partial reward begins at this F1
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = frozenset({"yes", "no", "noanswer"})  # answers for which there is no partial reward


def normalise(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(answer: str, references: Sequence[str]) -> bool:
    return any(normalise(answer) == normalise(reference) for reference in references)


def f1(answer: str, reference: str) -> float:
    """The harmonic mean of precision and recall of the words; 0 if the texts differ and one is only yes, no or noanswer."""
    answered, wanted = normalise(answer), normalise(reference)
    if answered != wanted and (answered in _CLOSED or wanted in _CLOSED):
        return 0.0
    words, expected = answered.split(), wanted.split()
    shared = sum((Counter(words) & Counter(expected)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(words), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


_FORMATS = "HotpotQA, 2WikiMultiHopQA, MuSiQue, Bamboogle or FlashRAG"


def read_questions(path: str | Path, key: str) -> tuple[list[Question], list[Page]]:
    """Returns the different questions in a file, and its pages. ``key`` is the configuration key that names the file."""
    questions: dict[str, Question] = {}
    pages: list[Page] = []
    for place, record in read_data_file(path, key):
        try:
            parsed = _question(record)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise InputError(
                f"{place}: the record is not in the format of {_FORMATS} ({type(error).__name__}: {error}); correct or "
                "remove the record"
            ) from error
        if parsed is not None:
            question = replace(parsed[0], kind=str(record.get("data_set") or parsed[0].kind))
            questions.setdefault(question.key, question)
            pages += parsed[1]
    if not questions:
        raise InputError(f"{path}: the file contains no question; {key} must be a file of {_FORMATS}")
    return list(questions.values()), pages


def read_pages(path: str | Path, key: str) -> list[Page]:
    """Reads pages with ``title`` and ``text`` (as in DPR), or with ``contents``, whose first line is the title."""
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
    """Returns the question and the pages of a record; None if it is one that has no answer (MuSiQue)."""
    if "paragraphs" in record:
        return _musique(record) if record.get("answerable") is not False else None
    if "supporting_facts" in record and "context" in record:
        return _hotpot(record)
    if "golden_answers" in record:
        return _checked_question(
            "flashrag", record["question"], [str(one) for one in _value(record["golden_answers"])], ()
        ), []
    if "Question" in record and "Answer" in record:
        return _checked_question("bamboogle", record["Question"], [record["Answer"]], ()), []
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
    return _checked_question(kind, record["question"], [record["answer"]], evidence), list(pages.values())


def _musique(record: Mapping[str, Any]) -> tuple[Question, list[Page]]:
    paragraphs = _value(record["paragraphs"])
    pages = {int(p["idx"]): Page(str(p["title"]), (str(p["paragraph_text"]),)) for p in paragraphs}
    steps = [step["paragraph_support_idx"] for step in _value(record.get("question_decomposition") or [])]
    used = [int(i) for i in steps if i is not None] or [int(p["idx"]) for p in paragraphs if p.get("is_supporting")]
    evidence = [(pages[i].title, pages[i].text) for i in used]
    answers = [record["answer"], *(_value(record.get("answer_aliases")) or ())]
    return _checked_question(f"hop{len(used)}", record["question"], answers, evidence), list(pages.values())


def _checked_question(kind: str, text: Any, answers: Sequence[Any], evidence: Sequence[Fact]) -> Question:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"the question must be text, got {text!r}")
    if not answers or not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise ValueError(f"the answers must be text, got {answers!r} (published test files contain no answers)")
    facts = tuple((cleaned(title).strip(), cleaned(sentence).strip()) for title, sentence in evidence)
    return Question(kind, cleaned(text).strip(), tuple(dict.fromkeys(cleaned(a).strip() for a in answers)), facts)


def _pairs(value: Any, *keys: str) -> list[tuple[str, Any]]:
    value = _value(value)
    if isinstance(value, Mapping):
        second = next(key for key in keys[1:] if key in value)
        return list(zip(map(str, value[keys[0]]), value[second], strict=True))
    return [(str(first), second) for first, second in value]


def _value(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value
