"""The generated pages and the questions over them."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from turnwise.env import SPLITS
from turnwise_worlds.search.encyclopaedia import Encyclopaedia, Question

SMALL = {"tiny": 10, "full": 6}


@pytest.fixture(scope="module", params=["tiny", "full"])
def book(request: pytest.FixtureRequest) -> Encyclopaedia:
    return Encyclopaedia(request.param, countries=SMALL[request.param])


def all_questions(book: Encyclopaedia) -> dict[str, list[Question]]:
    return {split: book.questions(split, 0) for split in SPLITS}


def test_splits_share_no_question_and_unseen_shares_no_page(book: Encyclopaedia) -> None:
    found = all_questions(book)
    texts = {split: {q.text for q in questions} for split, questions in found.items()}
    assert all(len(texts[split]) > 20 for split in SPLITS)
    assert not texts["train"] & texts["seen"] and not (texts["train"] | texts["seen"]) & texts["unseen"]
    pages = {split: {title for q in questions for title in q.titles} for split, questions in found.items()}
    assert not pages["unseen"] & (pages["train"] | pages["seen"])
    assert pages["seen"] <= {page.title for page in book.pages}


def test_evidence_stands_on_its_page_and_leads_from_one_to_the_next(book: Encyclopaedia) -> None:
    for question in book.questions("train", 0)[:300]:
        for title, sentence in question.evidence:
            page = book.pages.named(title)
            assert page is not None and sentence in page.sentences
        assert question.titles[0] in question.text
        if question.kind.startswith("chain"):
            assert len(question.evidence) == int(question.kind[-1])
            for (_, sentence), (following, _) in zip(question.evidence, question.evidence[1:], strict=False):
                assert following in sentence
            assert question.answers[0] in question.evidence[-1][1]
        assert question.kind.startswith("chain") == (question.answers[0] not in question.text)


def test_comparisons_are_answered_by_the_numbers_of_their_evidence() -> None:
    book = Encyclopaedia("full", countries=6)
    least = re.compile(r"earlier|first")
    checked: Counter[str] = Counter()
    for question in book.questions("unseen", 0):
        if question.kind.startswith("chain"):
            continue
        numbers = [
            int(re.findall(r"\d+", sentence)[-1]) for _, sentence in question.evidence if re.search(r"\d", sentence)
        ]
        assert len(numbers) == 2
        named = [question.evidence[0][0], question.evidence[len(question.evidence) // 2][0]]
        pick = min if least.search(question.text) else max
        assert question.answers == (named[numbers.index(pick(numbers))],)
        checked[question.kind] += 1
    assert checked["comparison"] > 20 and checked["composition"] > 20
