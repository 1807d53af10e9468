"""env=verifiers over real environments of the library: the module ``count_on`` beside this file."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from turnwise.env import Environment, EnvironmentFault, check_ready, demonstrated
from turnwise.errors import InputError
from turnwise_worlds.verifiers import VerifiersEnv, verifiers_rows

pytestmark = pytest.mark.extra("verifiers")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def played(kind: str, **more: Any) -> VerifiersEnv:
    return VerifiersEnv("count-on", {"kind": kind, "count": 20}, **more)


def test_a_single_turn_is_scored_by_the_rubric() -> None:
    env = played("single")
    assert isinstance(env, Environment) and env.horizon == 1
    check_ready(env)
    for task in (*env.tasks("train", 5), *env.tasks("unseen", 5)):
        assert env.reset(task).step(task.data["answer"]).won
    session = env.reset(task)
    number = task.data["info"]["start"]
    assert session.opening() == [{"role": "user", "content": f"what comes after {number}"}]
    assert env.accepts(session, f" {number + 1} ", "x") and not env.accepts(session, "0", "x") and not session.done
    step = session.step("0")
    assert (step.reward, step.done, step.won, step.info["right"]) == (0.0, True, False, 0.0)


def test_turns_forks_and_the_last_answer_of_a_multi_turn_environment() -> None:
    env = played("multi")
    task = env.tasks("train", 1)[0]
    number = task.data["info"]["start"]
    session = env.reset(task)
    assert session.step(str(number - 1)).observation == "more"
    fork = session.fork()
    won = session.step(str(number))
    assert (won.observation, won.reward, won.done, won.won, won.info["stopped"]) == (
        "yes", 0.5, True, True, "has_final_env_response",
    )  # fmt: skip
    assert fork.step("?").observation == "say a number"
    assert fork.step(str(number + 1)).observation == "less"
    last = fork.step("1")
    assert (last.done, last.won, last.reward, last.info["stopped"]) == (True, False, 0.0, "max_turns_reached")
    assert played("multi", horizon=2).horizon == 2 and played("multi", threshold=0.9).threshold == 0.9


@pytest.mark.parametrize(
    ("form", "call"),
    [
        ("bfcl_python", "add(a={}, b=7)"),
        ("hermes", '<tool_call>{{"name": "add", "arguments": {{"a": {}, "b": 7}}}}</tool_call>'),
    ],
)
def test_tools_are_shown_called_and_answered(form: str, call: str) -> None:
    env = played("tool", format=form)
    task = env.tasks("seen", 1)[0]
    number = task.data["info"]["start"]
    session = env.reset(task)
    if form == "hermes":
        assert session.tools[0]["function"]["name"] == "add" and len(session.opening()) == 1
    else:
        assert session.tools == () and session.opening()[0]["content"].startswith("add(a, b)")
    step = session.step(call.format(number))
    assert step.observation == str(number + 7)
    assert step.shown[0]["role"] == ("tool" if form == "hermes" else "user")
    assert session.fork().step("no call").done
    assert session.step(str(number + 7)).won


def test_failures_are_faults() -> None:
    env = played("multi")
    task = env.tasks("train", 1)[0]
    for word, told in (("break", "RuntimeError: broken"), ("fail", "InfraError")):
        with pytest.raises(EnvironmentFault, match=told):
            env.reset(task).step(word)


def test_no_held_out_row_is_a_training_row() -> None:
    for more in ({}, {"shared": 6}, {"held_out": False, "count": 200}):
        env = VerifiersEnv("count-on", {"kind": "multi", "count": 80, **more})
        counted = {
            split: sum(1 for _ in verifiers_rows(env._environment, split)) for split in ("train", "seen", "unseen")
        }
        starts = {
            split: {row["info"]["start"] for _, row in verifiers_rows(env._environment, split)}
            for split in counted
            if counted[split]
        }
        assert counted["seen"] and not starts["train"] & (starts["seen"] | starts.get("unseen", set()))
    with pytest.raises(InputError):
        VerifiersEnv("count-on", {"count": 6, "shared": 6}).tasks("seen", 1)


def test_what_cannot_be_played_is_told_and_signals_stay_ours() -> None:
    before = signal.getsignal(signal.SIGTERM)
    env = played("single")
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(InputError, match=r"data\.file"):
        demonstrated(env, env.tasks("train", 1)[0], "good", 0)
    with pytest.raises(InputError, match="no-such-environment"):
        VerifiersEnv("no-such-environment")
    with pytest.raises(InputError, match=r"env\.id"):
        VerifiersEnv()
