"""``env.verifier=demonstrated``: a step is accepted where it shows what the demonstrated one shows, or answers the same."""

from __future__ import annotations

import pytest

from turnwise.types import Task
from turnwise_worlds.browse import BrowseEnv
from turnwise_worlds.search import SearchEnv

DATA = {
    "kind": "chain2",
    "question": "Who is the head of the home of Alma Irving?",
    "answers": ["Gita Bauer"],
    "evidence": [["Alma Irving", "The home is Clay Dale."], ["Clay Dale", "Its head is Gita Bauer."]],
}


@pytest.fixture(scope="module")
def env():
    return SearchEnv("tiny", verifier="demonstrated")


@pytest.fixture
def session(env):
    return env.reset(Task("search", "train/case", "train", DATA))


@pytest.mark.parametrize(
    ("action", "expert"),
    [
        ("search Alma Irving", "search Alma Irving"),
        ("search the home of Alma Irving", "search Alma Irving"),
        ("search Bero Falk", "search bero falk"),  # a mistake is compared with like any other step
        ("answer gita bauer.", "answer Gita Bauer"),
        ("answer Lano Bauer", "answer Lano Bauer"),
    ],
)
def test_the_same_pages_and_the_same_answer_are_accepted(env, session, action, expert):
    assert env.accepts(session, action, expert)


@pytest.mark.parametrize(
    ("action", "expert"),
    [
        ("search Clay Dale", "search Alma Irving"),  # evidence, and not what was demonstrated
        ("search Alma Irving", "search Bero Falk"),
        ("answer Gita Bauer", "search Alma Irving"),
        ("answer Gita Bauer", "answer Lano Bauer"),
        ("search Gita Bauer", "answer Gita Bauer"),
        ("answer Bauer", "answer Gita Bauer"),
        ("find Alma Irving", "search Alma Irving"),
        ("", "search Alma Irving"),
        # the demonstrated step is no call, or finds nothing
        ("Alma Irving", "Alma Irving"),
        ("search zzz", "search zzz"),
        ("search yyy", "search zzz"),
    ],
)
def test_other_steps_are_refused(env, session, action, expert):
    assert not env.accepts(session, action, expert)


def test_browsing_is_compared_by_what_a_step_shows():
    env = BrowseEnv("tiny", verifier="demonstrated")
    session = env.reset(Task("browse", "train/case", "train", DATA))
    for steps, expert, accepted, refused in (
        ((), "search Alma Irving", ["search alma irving"], ["search Bero Falk", "open Alma Irving", "find home"]),
        (("search Alma Irving",), "open 1", ["open Alma Irving", "open [1]"], ["open 2", "search Alma Irving"]),
        (("open 1",), "find home", ["find HOME", "find The home is"], ["find year", "answer Gita Bauer"]),
        ((), "find zzz", [], ["find zzz", "find yyy"]),  # shows nothing
        ((), "answer Lano Bauer", ["answer lano bauer!"], ["answer Gita Bauer", "open 1"]),
    ):
        for step in steps:
            session.step(step)
        assert [a for a in accepted if not env.accepts(session, a, expert)] == []
        assert [a for a in refused if env.accepts(session, a, expert)] == []
