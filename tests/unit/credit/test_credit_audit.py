"""The audit against a world whose values are known, and its statistics against theory."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from scipy.stats import binom, chi2_contingency
from tests.unit.credit.played import exact, paths_of, player_of

from turnwise.methods.allocate import Uniform
from turnwise.methods.credit import GroupAdvantage
from turnwise.types import RolloutTree, Task, Turn
from turnwise_study.credit_audit import (
    AuditedTurn,
    Truth,
    Worth,
    audit,
    join_audits,
    measure_advantages,
    repeated_turn,
    replay_audited_turns,
    score_rule,
    score_rules,
    trials_for,
)
from turnwise_worlds.corridor import CorridorEnv, CorridorSession, after, skilled, value

G = 8


@pytest.mark.parametrize("turns", [160, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_audit_measures_the_values_of_a_known_world(turns: int) -> None:
    player = player_of(CorridorEnv(horizon=8, density=0.5, noise=0.2))
    paths = paths_of(player, turns // 8)
    trials = trials_for(0.07)
    audited = measure_advantages(player, paths, [range(8)] * len(paths), trials, "k")
    assert len(audited) == turns
    truth = np.array([exact(turn.path, turn.place + 1) - exact(turn.path, turn.place) for turn in audited])
    bounds = np.array([turn.interval() for turn in audited])
    inside = (bounds[:, 0] - 1e-9 <= truth) & (truth <= bounds[:, 1] + 1e-9)
    assert 0.92 <= inside.mean() <= 0.995
    errors = np.array([turn.advantage for turn in audited]) - truth
    variances = np.array([turn.variance for turn in audited])
    # the turns of a path share the values between them, so their errors are not independent; those of paths are
    of_path = errors.reshape(-1, 8).mean(1)
    assert abs(of_path.mean()) < 3.5 * of_path.std() / len(of_path) ** 0.5
    assert (errors**2).mean() == pytest.approx(variances.mean(), rel=0.25)
    assert all(turn.q.trials in (0, trials) and turn.v.trials == trials for turn in audited)


def theory(q: float, v0: float, kind: str) -> tuple[float, float]:
    """Mean and variance of the credit of one rollout of value q among G - 1 others of value v0, by summing over all
    outcomes.
    """
    mean = square = 0.0
    for own in (0, 1):
        for wins in range(G):
            chance = (q if own else 1 - q) * comb(G - 1, wins) * v0**wins * (1 - v0) ** (G - 1 - wins)
            share = (own + wins) / G
            credit = own - share
            if kind == "std":
                credit = credit / (share * (1 - share)) ** 0.5 if 0 < share < 1 else 0.0
            elif kind == "others":
                credit = own - wins / (G - 1)
            mean += chance * credit
            square += chance * credit**2
    return mean, square - mean**2


def test_bias_and_variance_of_group_rules_are_those_of_theory() -> None:
    player = player_of(CorridorEnv(horizon=6, density=0.6, noise=0.2))
    rules = {
        "mean": ("group", GroupAdvantage(scale=False)),
        "others": ("group", GroupAdvantage(scale=False, baseline="leave_one_out")),
        "std": ("group", GroupAdvantage()),
    }
    part = audit(player, paths_of(player, 40), rules, "k", turns=2, replicates=12, exact=exact)
    for kind in rules:
        expected = [theory(turn.q.mean, exact(turn.path, 0), kind) for turn in part.turns]
        means, variances = map(np.array, zip(*expected, strict=True))
        credit_TR = part.credits[kind]
        z = (credit_TR.mean(1) - means) / np.sqrt(np.maximum(variances, 1e-12) / credit_TR.shape[1])
        assert abs(z.mean()) < 4 / len(z) ** 0.5 and 0.7 < (z**2).mean() < 1.3
        assert credit_TR.var(1, ddof=1).mean() == pytest.approx(variances.mean(), rel=0.1)
    # leave one out has no bias but the difference of the two baselines, V(s) and the value of the start
    truth, credits, tokens = join_audits([part])
    gap = [turn.v.mean - exact(turn.path, 0) for turn in part.turns]
    found = score_rule(credits["others"], truth, tokens["others"])
    assert found["mean_error"] == pytest.approx(np.mean(gap), abs=0.05)


def test_shares_of_signal_bias_and_variance_are_those_that_were_put_in() -> None:
    rng = np.random.default_rng(0)
    tasks, turns = 2000, 4
    advantage = rng.normal(0, 0.3, tasks * turns)
    error_of_audit = rng.normal(0, 0.1, len(advantage))
    bias = rng.normal(0, 0.5, len(advantage))
    credit_TR = 2 * advantage[:, None] + bias[:, None] + rng.normal(0, 1.2, (len(advantage), 3))
    measured = advantage + error_of_audit
    truth = Truth(measured, np.full(len(measured), 0.01), np.abs(measured) > 0.3, np.repeat(np.arange(tasks), turns))
    found = score_rule(credit_TR, truth, 500)
    whole = 4 * 0.09 + 0.25 + 1.44
    assert found["gain"] == pytest.approx(2, rel=0.03)
    assert found["signal"] == pytest.approx(0.36 / whole, abs=0.01)
    assert found["bias"] == pytest.approx(0.25 / whole, abs=0.02)
    assert found["variance"] == pytest.approx(1.44 / whole, abs=0.01)
    assert found["snr"] == pytest.approx(2 * 0.36 / 1.69, rel=0.07)
    random = score_rules({"none": rng.normal(size=(400, 2))}, {"none": 500}, truth.some(np.arange(400)), 50)["none"]
    assert random["signal"]["low"] < 0.01 and abs(random["rank"]["value"]) < 0.1


def test_the_first_rollout_repeats_the_path_and_the_rest_is_drawn_afresh() -> None:
    player = player_of(CorridorEnv(horizon=6))
    path = paths_of(player, 1)[0]
    audited = AuditedTurn(path, 3, Worth(1, 2), Worth(1, 2))
    ((first, second),) = replay_audited_turns(player, [audited], Uniform(4), 4, 2, "k")
    for tree in (first, second):
        at = repeated_turn(tree, audited)
        assert [tree.turns[i].text for i in tree.path(at)] == [turn.text for turn in path.turns[:4]]
        assert [tree.turns[i].logprobs for i in tree.path(at)] == [turn.logprobs for turn in path.turns[:4]]
    assert [turn.text for turn in first.turns] != [turn.text for turn in second.turns]
    other = RolloutTree(path.state, [replace(turn, action_ids=[1]) for turn in path.turns])
    with pytest.raises(RuntimeError):
        repeated_turn(first, replace(audited, path=other))


def test_intervals_and_p_values_of_two_values() -> None:
    path = RolloutTree(None, [Turn(-1, [], [])])  # type: ignore[arg-type]
    turn = AuditedTurn(path, 0, Worth(56, 70), Worth(48, 80))
    # Newcombe (1998), Table II: 56/70 - 48/80, method 10
    assert turn.interval() == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert turn.p_value() == pytest.approx(chi2_contingency([[56, 14], [48, 32]], correction=False).pvalue)
    assert AuditedTurn(path, 0, Worth(1, 0), Worth(19, 20)).p_value() == 0
    assert AuditedTurn(path, 0, Worth(0, 0), Worth(0, 20)).p_value() == 1


# -- corridor ----------------------------------------------------------------------------------------------------------


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
