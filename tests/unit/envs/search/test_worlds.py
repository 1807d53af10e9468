"""Episodes of search and browse: experts, scoring at the end, verifiers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.env import Environment, Quality
from turnwise.types import Task
from turnwise_worlds.browse import BrowseEnv, distance
from turnwise_worlds.browse import Mistakes as BrowseMistakes
from turnwise_worlds.search import Mistakes, SearchEnv


def actions(env: Environment, task: Task, quality: Quality, seed: int = 0) -> list[str]:
    said = env.demonstrate(task, quality, seed).messages
    return [str(message["content"]) for message in said if message["role"] == "assistant"]


@pytest.fixture(params=["world", "pages"])
def env(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_worlds_speak_the_protocol(env: Any) -> None:
    assert isinstance(env, Environment)


def test_lists_of_tasks_differ_by_split_and_grow_at_the_end(env: Any) -> None:
    short, long = env.tasks("train", 5), env.tasks("train", 20)
    assert list(short) == list(long[:5])
    assert len({task.id for task in long}) == 20
    assert list(env.tasks("train", 5, seed=1)) != list(short)
    with pytest.raises(ValueError, match="split"):
        env.tasks("test", 1)
    with pytest.raises(ValueError, match="needed"):
        env.tasks("unseen", 10**6)


@pytest.mark.parametrize("quality", ["good", "clumsy"])
@pytest.mark.parametrize("split", ["train", "seen", "unseen"])
def test_both_experts_win_and_the_clumsy_one_takes_longer(env: Any, quality: Quality, split: str) -> None:
    tasks = env.tasks(split, 40)
    assert all(env.demonstrate(task, quality).success for task in tasks)
    if quality == "clumsy":
        turns = {q: sum(len(actions(env, task, q)) for task in tasks) for q in ("good", "clumsy")}
        assert turns["clumsy"] > 1.1 * turns["good"]


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


def test_only_the_exact_answer_wins_and_a_near_one_is_paid_by_its_f1(world: SearchEnv) -> None:
    task = next(t for t in world.tasks("train", 50) if " " in t.data["answers"][0])
    first, last = task.data["answers"][0].split()
    for answer, reward, won in ((f"the {first} {last}!", 1.0, True), (first, 2 / 3, False), ("nobody", 0.0, False)):
        session = world.reset(task)
        step = session.step(f"answer {answer}")
        assert step.done and session.done
        assert (step.reward, step.won, session.won) == (pytest.approx(reward), won, won)
        with pytest.raises(RuntimeError, match="over"):
            session.step("answer again")


def test_a_lucky_guess_wins_but_is_not_accepted_before_the_evidence(world: SearchEnv) -> None:
    task = world.tasks("train", 1)[0]
    session = world.reset(task)
    guess = f"answer {task.data['answers'][0]}"
    assert not world.accepts(session, guess, actions(world, task, "good")[0])
    assert world.accepts(session, guess, guess)  # where the expert answers too, it is the same act
    assert session.step(guess).won


def test_text_that_is_no_call_costs_a_turn_and_the_horizon_ends_the_episode(env: Any) -> None:
    session = env.reset(env.tasks("train", 1)[0])
    for turn in range(env.horizon):
        assert not session.done
        step = session.step("<tool_call>" if turn % 2 else "look around")
        assert step.observation.startswith("Error") and step.info["admissible"] is False
    assert session.done and not session.won


@given(
    st.lists(st.sampled_from(["search Ash Bay", "search Alma", "open 1", "open 2", "find year", "x"]), max_size=6),
    st.data(),
)
def test_a_fork_leaves_its_parent_alone(pages: BrowseEnv, taken: list[str], data: st.DataObject) -> None:
    task = pages.tasks("train", 1)[0]
    parent, alone = pages.reset(task), pages.reset(task)
    for action in taken:
        parent.step(action)
        alone.step(action)
    child = parent.fork()
    for action in data.draw(st.lists(st.sampled_from(["search Fox", "open 1", "find home", "answer x"]), max_size=5)):
        if not child.done:
            child.step(action)
    for action in ("open 2", "find head", "search Moss Hill", "open 1"):
        assert parent.step(action) == alone.step(action)


def test_a_task_of_other_pages_is_refused(world: SearchEnv) -> None:
    with pytest.raises(ValueError, match="made with the pages 'tiny 0 10', but this run has the pages 'tiny 1 10'"):
        SearchEnv("tiny", edition=1, countries=10).reset(world.tasks("train", 1)[0])
    with pytest.raises(ValueError, match="made for env"):
        BrowseEnv("tiny", countries=10).reset(world.tasks("train", 1)[0])
    with pytest.raises(ValueError, match="a question needs"):
        world.reset(Task("search", "x", "train", {"question": "?"}))


@pytest.mark.parametrize("wrong", [{"results": 0}, {"floor": 1.5}, {"horizon": 0}, {"calls": "xml"}])
def test_numbers_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SearchEnv("tiny", countries=2, **wrong)
    with pytest.raises(ValueError, match=r"mistakes\.stray"):
        Mistakes(stray=2)
    with pytest.raises(ValueError, match="sum to"):
        BrowseMistakes(stray=0.5, vain=0.5)
