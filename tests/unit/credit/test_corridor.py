"""The values of env=corridor against closed forms and against sums worked by hand."""

from __future__ import annotations

import pytest
from scipy.stats import binom

from turnwise.types import Task
from turnwise_worlds.corridor import CorridorEnv, CorridorSession, after, skilled, value


@pytest.mark.parametrize(
    ("horizon", "density", "noise", "slips", "skill"),
    [(9, 0.5, 0.2, 1, 0.7), (16, 0.25, 0.0, 0, 0.5), (21, 1.0, 0.9, 6, 0.9), (5, 0.0, 0.3, 0, 0.1)],
)
def test_values_are_binomial(horizon: int, density: float, noise: float, slips: int, skill: float) -> None:
    env = CorridorEnv(horizon, density, noise, slips)
    forks = round(density * (horizon - 1))
    for task in env.tasks("train", 3):
        session, known = env.reset(task), {}
        policy = skilled(skill)
        while not session.at_doors:
            left = sum(map(bool, session.signs[session.room :]))
            closed = (1 - noise) * binom.cdf(slips - session.wrong, left, 1 - skill)
            assert value(session, policy, known) == pytest.approx(closed)
            if session.sign:
                for way in ("left", "right"):
                    wrong = session.wrong + (way != session.sign)
                    q = (1 - noise) * binom.cdf(slips - wrong, left - 1, 1 - skill)
                    assert value(after(session, way), policy, known) == pytest.approx(q)
            elif policy(session.view()):
                assert value(after(session, "on"), policy, known) == pytest.approx(closed)
            session.step("left")
        assert len([sign for sign in session.signs if sign]) == forks
        assert value(after(session, session.unlocked[0]), policy, known) == (session.wrong <= slips)


def test_a_turn_that_cannot_be_read_is_lost() -> None:
    """Two rooms and the doors: three readable turns are needed, the way of the first is right with 3/4 of the rest."""
    data = {"name": "a", "signs": ["left", ""], "unlocked": ["1", "2"], "slips": 0}
    session = CorridorSession(Task("corridor", "a", "train", data))
    policy = {"left": 0.6, "right": 0.2, "?": 0.2}
    doors = {"1": 0.3, "2": 0.1, "9": 0.5, "": 0.1}
    v = value(session, lambda text: doors if "doors" in text else policy, {})
    assert v == pytest.approx(0.6 * 0.8 * 0.4)
    assert value(after(session, "?"), lambda text: doors if "doors" in text else policy, {}) == 0
