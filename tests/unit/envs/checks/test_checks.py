"""The checks find what is wrong: each test breaks a sound world in one way."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoTokenizer

from turnwise.data.chat_tokens import ChatTokens
from turnwise.envs.alfworld import AlfworldEnvironment
from turnwise.envs.checks import check_forks, check_hostile, forges, read_cases, replay
from turnwise.envs.checks.cases import case_file
from turnwise.envs.environment import Step
from turnwise.envs.search import SearchEnv, SearchSession
from turnwise.errors import InputError
from turnwise.models.shipped import ASSETS

ENVS = Path(__file__).parents[4] / "src" / "turnwise" / "envs"


@pytest.fixture
def env() -> SearchEnv:
    return SearchEnv("tiny", countries=4)


def hostile(env: SearchEnv, sequences: int = 40, **more: Any) -> list[str]:
    return check_hostile(env, env.tasks("train", 3), ["search Ash Bay", "answer 12"], sequences, **more)


def forks(env: SearchEnv) -> list[str]:
    replayed = [replay(env, task) for task in env.tasks("train", 6)]
    return check_forks(env, replayed, ["search Oak", "search Fox Bay"], random.Random(0))


def test_a_sound_world_passes(env: SearchEnv) -> None:
    assert hostile(env) == [] == forks(env)
    episode = replay(env, env.tasks("train", 1)[0])
    assert episode.won and episode.alike and all(episode.accepted)


def raises(session: SearchSession, action: str) -> Step:
    raise KeyError(action)


def endless(session: SearchSession, action: str) -> Step:
    return Step("x")


def executes(session: SearchSession, action: str) -> Step:
    session.turns += 1
    session.done = session.turns >= session.horizon
    if action.startswith("__import__"):
        eval(action)
    return Step("x", done=session.done)


def infinite(session: SearchSession, action: str) -> Step:
    return Step("x", float("inf"))


def disagrees(session: SearchSession, action: str) -> Step:
    return Step("x", done=True)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (raises, "KeyError"),
        (endless, "not done after"),
        (executes, "was executed"),
        (infinite, "reward is inf"),
        (disagrees, "disagree"),
    ],
)
def test_hostile_sequences_find(
    step: Callable[[SearchSession, str], Step], told: str, env: SearchEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SearchSession, "step", step)
    assert any(told in problem for problem in hostile(env, 60))


def test_hostile_sequences_find_an_echo_that_forges_a_turn(env: SearchEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def echo(session: SearchSession, action: str) -> Step:
        session.turns += 1
        session.done = session.turns >= session.horizon
        told = action[:200].encode(errors="replace").decode()
        return Step(f"no such tool: {told}", done=session.done)

    monkeypatch.setattr(SearchSession, "step", echo)
    tokenizer = AutoTokenizer.from_pretrained(ASSETS)
    assert hostile(env, forges=partial(forges, chat=ChatTokens(tokenizer))) == []
    monkeypatch.setattr(
        "turnwise.data.chat_tokens.disarming", lambda tokenizer: (lambda message: message, lambda tools: tools)
    )
    found = hostile(env, forges=partial(forges, chat=ChatTokens(tokenizer)))
    assert any("begins a new chat turn" in problem for problem in found)


def test_hostile_sequences_find_a_verifier_that_raises(env: SearchEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def accepts(self: SearchEnv, session: Any, action: str, expert: str) -> bool:
        return bool(action.encode())

    monkeypatch.setattr(SearchEnv, "accepts", accepts)
    assert any("UnicodeEncodeError" in problem for problem in hostile(env, 200))


def test_forks_that_share_state_are_found(env: SearchEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SearchSession, "fork", lambda session: session)
    assert any("without a fork" in problem for problem in forks(env))


def test_forks_whose_state_leaks_are_found(env: SearchEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    shared: list[str] = []
    use = SearchSession.use

    def leaking(session: SearchSession, tool: str, argument: str) -> Step:
        shared.append(argument)
        answer = use(session, tool, argument)
        return Step(f"{len(shared)} {answer.observation}", done=answer.done, won=answer.won)

    monkeypatch.setattr(SearchSession, "use", leaking)
    assert any("without a fork" in problem for problem in forks(env))


def test_a_world_that_is_not_the_same_twice_is_no_success(env: SearchEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(range(100))
    use = SearchSession.use

    def other(session: SearchSession, tool: str, argument: str) -> Step:
        answer = use(session, tool, argument)
        return Step(f"{next(answers)} {answer.observation}", done=answer.done, won=answer.won)

    monkeypatch.setattr(SearchSession, "use", other)
    assert not replay(env, env.tasks("train", 1)[0]).alike


def test_cases_that_the_verifier_fails_are_named(
    env: SearchEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {
        "about": "x",
        "task": {"split": "train", "index": 0},
        "expert": "a",
        "accepts": ["b", "c", "d"],
        "refuses": ["e", "f", "g", "h", "i"],
    }
    path = tmp_path / "checks.yaml"
    path.write_text(yaml.safe_dump([case]))
    monkeypatch.setattr(SearchEnv, "accepts", lambda self, session, action, expert: action in "abdg")
    refused, accepted = read_cases(path).wrong(lambda overrides: env)
    assert (len(refused), len(accepted)) == (1, 1)
    assert "refuses 'c'" in refused[0] and "accepts 'g'" in accepted[0]


SHORT = "- {about: x, task: {}, expert: a, accepts: [a], refuses: [b, c, d, e, f]}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "not YAML"),
        (f"- {'9' * 5000}", "not YAML"),
        ("- 2026-13-01", "not YAML"),
        ("{}", "must be a list of cases"),
        ("- about: x", "task"),
        (SHORT, r"accepts: .*at least 3"),
    ],
)
def test_a_bad_file_of_cases_is_refused(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "checks.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=told):
        read_cases(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_cases(tmp_path / "none.yaml")


def test_a_world_brings_its_cases_beside_its_module(env: SearchEnv) -> None:
    assert case_file(env) == ENVS / "search" / "checks.yaml"


def test_the_real_engine_has_the_cases_of_the_rooms_that_it_plays() -> None:
    assert case_file(AlfworldEnvironment()) == ENVS / "household" / "checks.yaml"


@pytest.mark.parametrize("path", sorted(ENVS.rglob("*checks.yaml")), ids=lambda path: path.parent.name)
def test_the_files_of_cases_that_are_here_can_be_read(path: Path) -> None:
    assert len(read_cases(path).cases) >= 2
