"""Episodes of search and browse: experts, scoring at the end, verifiers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.env import SPLITS, Environment, Quality
from turnwise.types import Task
from turnwise_worlds.browse import BrowseEnv, distance
from turnwise_worlds.search import Mistakes, SearchEnv
from turnwise_worlds.search.encyclopaedia import Encyclopaedia, Page, Pages, Question
from turnwise_worlds.search.question_files import f1
from turnwise_worlds.search.retrieval import Bm25


def actions(env: Environment, task: Task, quality: Quality, seed: int = 0) -> list[str]:
    said = env.demonstrate(task, quality, seed).messages
    return [str(message["content"]) for message in said if message["role"] == "assistant"]


@pytest.fixture(params=["world", "pages"])
def env(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_the_verifier_accepts_every_step_of_the_good_expert_and_none_twice(env: Any) -> None:
    for task in env.tasks("unseen", 40):
        session = env.reset(task)
        for action in actions(env, task, "good"):
            assert env.accepts(session, action, action)
            assert env.same(f" {action}\n", action)
            session.step(action)
            assert not env.accepts(session, action, action)  # it brought what there was to bring, or ended the episode


def test_the_clumsy_experts_mistakes_are_refused(world: SearchEnv) -> None:
    always = SearchEnv("tiny", countries=10, mistakes=Mistakes(repeat=0.3, stray=0, vague=0, malformed=0.5))
    refused = 0
    for task in always.tasks("train", 20):
        session = always.reset(task)
        for action in actions(always, task, "clumsy"):
            useful = always.accepts(session, action, action)
            before = session.missing()
            won = session.step(action).won
            assert useful == (won or session.missing() != before)
            refused += not useful
    assert refused > 10


def test_accepted_browsing_brings_the_evidence_nearer_and_cannot_go_on_for_ever(pages: BrowseEnv) -> None:
    for task in pages.tasks("train", 20):
        session = pages.reset(task)
        titles = session.question.titles
        moves = [f"{verb} {title}" for title in titles for verb in ("search", "open")] + [
            "find year",
            "find home",
            "find its",
        ]
        steps = 0
        while accepted := [move for move in moves if pages.accepts(session, move, move)]:
            before = distance(session)
            session.step(accepted[steps % len(accepted)])
            assert distance(session) < before
            steps += 1
        assert steps <= 3 * len(session.question.evidence)


def test_only_the_exact_answer_wins_and_a_near_one_is_paid_by_its_f1_from_the_floor_on(world: SearchEnv) -> None:
    task = next(t for t in world.tasks("train", 50) if " " in t.data["answers"][0])
    first, last = task.data["answers"][0].split()
    task.data["answers"].insert(0, "Nobody Else")  # the best of several answers counts
    exactly, strict = (SearchEnv("tiny", countries=10, floor=floor) for floor in (f1(first, f"{first} {last}"), 0.67))
    for env, answer, reward, won in (
        (world, f"the {first} {last}!", 1.0, True),
        (world, first, 2 / 3, False),
        (exactly, first, 2 / 3, False),
        (strict, first, 0.0, False),
        (world, f"{first} or some other", 1 / 3, False),
        (world, f"{first} or some other one", 0.0, False),  # 2/7, and the paper's floor is 0.3
        (world, "nothing", 0.0, False),
    ):
        session = env.reset(task)
        step = session.step(f"answer {answer}")
        assert step.done and session.done
        assert (step.reward, step.won, session.won) == (pytest.approx(reward), won, won)
        with pytest.raises(RuntimeError, match="over"):
            session.step("answer again")


# -- answer scores -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("Gita Bauer", "Gita Bauer", 1.0),
        ("the city of Paris", "Paris", 0.5),  # "the" goes: precision 1/3, recall 1
        ("Paris", "Paris, France", 2 / 3),  # precision 1, recall 1/2
        ("red red blue", "red blue blue", 2 / 3),  # words are counted, not looked up
        ("London", "Paris", 0.0),
        ("yes it is", "yes", 0.0),  # a closed answer is whole or nothing
        ("", "Paris", 0.0),
    ],
)
def test_f1_by_hand(answer: str, reference: str, expected: float) -> None:
    assert f1(answer, reference) == pytest.approx(expected)


@given(st.text(max_size=40), st.text(max_size=40))
def test_f1_is_symmetric_and_bounded(a: str, b: str) -> None:
    assert f1(a, b) == pytest.approx(f1(b, a))
    assert 0 <= f1(a, b) <= 1 + 1e-12


# -- bm25 --------------------------------------------------------------------------------------------------------------

PAGES = [
    Page("Comet", ("A comet is ice.",)),
    Page("Stark Motors", ("It made the Comet.",)),
    Page("Lenbury", ("A town.",)),
]


def test_bm25_puts_the_page_of_that_title_first_and_shows_nothing_where_no_word_fits() -> None:
    find = Bm25(Pages(PAGES))
    assert [page.title for page in find("comet", 3)] == ["Comet", "Stark Motors"]
    assert [page.title for page in find("COMET stark", 1)] == ["Stark Motors"]
    assert find("zebra", 3) == () == find("the of", 3) == find("\x00 \ud800", 3)


def test_bm25s_is_loaded_when_pages_are_searched() -> None:
    """It loads a compiler: a second of CPU time, which a configuration that is refused need not wait for."""
    program = "import sys; import turnwise_worlds.search.environment; assert 'bm25s' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


# -- encyclopaedia -----------------------------------------------------------------------------------------------------

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
