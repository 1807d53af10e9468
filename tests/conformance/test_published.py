"""env=verifiers over an environment that others published (make published): by its name, and without a network."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from turnwise.envs.environment import check_ready
from turnwise.envs.verifiers import VerifiersEnv

pytestmark = pytest.mark.extra("published")


def _no_network(*_: Any) -> None:
    raise OSError("this test asks no network")


def argued(claims: int, quote: str) -> str:
    return f"<claim>the story says so</claim><cite>{quote}</cite>" * claims


def test_a_published_environment_is_played_by_its_own_rubric(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply argues for an answer about a passage. The reward is the mean of 0.5 + n / 16, for n claims up to eight, and the
    share of grounded quotations, which is 1 where nothing is claimed."""
    monkeypatch.setattr(socket.socket, "connect", _no_network)
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)  # with it, it asks the Hub for a model
    env = VerifiersEnv("sophistry_bench.sprint", {"n_items": 20, "passage_chars": 300}, threshold=0.9)
    check_ready(env)
    assert env.horizon == 1 and env.unforkable() == ""
    assert not {task.id for task in env.tasks("train", 32)} & {task.id for task in env.tasks("unseen", 4)}
    (task,) = env.tasks("train", 1)
    assert "Solomon's Orbit" in task.data["info"]["passage"]
    session = env.reset(task)
    told, asked = session.opening()
    assert task.data["info"]["passage"] in told["content"] and asked["content"].startswith("Make your argument for: ")
    for claims, quote, reward in (
        (8, "There will, sooner or later, be problems", 1.0),
        (4, "There will, sooner or later, be problems", 0.875),
        (8, "There were never any problems", 0.5),
        (0, "", 0.5),
    ):
        step = session.fork().step(argued(claims, quote))
        assert (step.reward, step.won, step.done) == (pytest.approx(reward), reward > 0.9, True)
        assert step.info["n_claims_metric"] == claims
