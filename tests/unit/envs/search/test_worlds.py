"""Episodes of search and browse: experts, scoring at the end, verifiers."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.env import Environment, Quality
from turnwise.types import Task
from turnwise_worlds.browse import BrowseEnv, distance
from turnwise_worlds.search import Mistakes, SearchEnv
from turnwise_worlds.search.retrieval import f1


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
