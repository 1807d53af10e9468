"""Every statement is checked against something that does not use it: finite differences, a linear solve, an optimiser."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests.unit.theory import pivotrl

from turnwise.algo.advantages.group import GroupAdvantage
from turnwise.types import RolloutTree, State, Task, Turn

SEEDS = range(8)


def draw(seed: int, actions: int = 6):
    rng = np.random.default_rng(seed)
    reference = rng.dirichlet(np.full(actions, 0.7)) * 0.98 + 0.02 / actions
    acceptable = rng.random(actions) < 0.4
    acceptable[:2] = True, False
    return rng, reference, acceptable, float(rng.uniform(0.2, 3.0))


@given(st.lists(st.integers(0, 1), min_size=1, max_size=16))
def test_prop_3_1_only_mixed_groups_have_an_update(rewards) -> None:
    turns = [Turn(parent=-1, action_ids=[1], logprobs=[-1.0]) for _ in rewards]
    tree = RolloutTree(State(id="s", task=Task("toy", "train/0", "train"), ids=(1,)), turns)
    advantage = GroupAdvantage()(tree, {"total": rewards}).advantage
    mixed = 0 < sum(rewards) < len(rewards)
    assert any(a != 0 for a in advantage) == mixed
    assert all(a != 0 for a in advantage) == mixed


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("binary", [True, False])
def test_thm_3_2_score_is_natural_gradient_norm_over_beta_squared(seed, binary) -> None:
    rng, reference, acceptable, beta = draw(seed)
    reward = acceptable.astype(float) if binary else rng.normal(size=len(reference))
    policy = pivotrl.tilted(reference, reward, beta)

    # Eq. 9 with the derivative along the path taken by differences
    mean = policy @ reward
    std = math.sqrt(policy @ (reward - mean) ** 2)
    h = 1e-5
    after, before = (np.log(pivotrl.tilted(reference, reward, beta + step)) for step in (h, -h))
    velocity = (after - before) / (2 * h)
    by_differences = -policy @ ((reward - mean) / std * velocity)

    score = pivotrl.grpo_score(reference, reward, beta)
    gradient = pivotrl.natural_gradient(policy, reward)
    assert score == pytest.approx(by_differences, rel=1e-5)
    assert score == pytest.approx(pivotrl.fisher_norm(policy, gradient) / beta**2)
    assert score == pytest.approx(std / beta**2)


@pytest.mark.parametrize("seed", SEEDS)
def test_natural_gradient_is_fisher_inverse_times_gradient(seed) -> None:
    rng, policy, _, _ = draw(seed)
    reward = rng.normal(size=len(policy))
    # softmax parameters: Fisher matrix diag(p) - p p', gradient of the expected reward p (r - mean)
    fisher = np.diag(policy) - np.outer(policy, policy)
    step = np.linalg.lstsq(fisher, policy * (reward - policy @ reward), rcond=None)[0]
    tangent = step - policy @ step  # d log pi for d logits = step
    np.testing.assert_allclose(pivotrl.natural_gradient(policy, reward), tangent, atol=1e-9)
    assert policy @ tangent == pytest.approx(0, abs=1e-9)
    assert pivotrl.fisher_norm(policy, tangent) == pytest.approx(math.sqrt(step @ fisher @ step))


def test_thm_3_2_equal_rewards_have_no_signal_and_more_variance_has_more() -> None:
    reference = np.full(4, 0.25)
    assert pivotrl.grpo_score(reference, np.ones(4), 0.5) == 0
    beta = 1e6  # the path hardly leaves the reference: the score is the reference's std over beta^2
    scores = [pivotrl.grpo_score(reference, (np.arange(4) < k).astype(float), beta) * beta**2 for k in range(5)]
    assert scores == pytest.approx([0, math.sqrt(3) / 4, 0.5, math.sqrt(3) / 4, 0], abs=1e-5)


def test_thm_3_3_by_hand() -> None:
    reference, acceptable = np.array([0.1, 0.3, 0.6]), np.array([True, False, False])
    beta = 1 / math.log(9)  # e^(1/beta) = 9: mass 0.9 / (0.9 + 0.9) = 1/2
    assert pivotrl.acceptable_mass(reference, acceptable, beta) == pytest.approx(0.5)
    np.testing.assert_allclose(pivotrl.functional_minimiser(reference, acceptable, beta), [1 / 2, 1 / 6, 1 / 3])


@pytest.mark.parametrize("seed", SEEDS)
def test_thm_3_3_minimiser_is_what_an_optimiser_finds(seed) -> None:
    rng, reference, acceptable, beta = draw(seed)

    def objective(logits):
        weights = np.exp(logits - logits.max())
        return pivotrl.functional_objective(weights / weights.sum(), reference, acceptable, beta)

    found = minimize(objective, rng.normal(size=len(reference)), method="BFGS", options={"gtol": 1e-9})
    weights = np.exp(found.x - found.x.max())
    best = pivotrl.functional_minimiser(reference, acceptable, beta)
    np.testing.assert_allclose(best, weights / weights.sum(), atol=1e-4)
    assert pivotrl.functional_objective(best, reference, acceptable, beta) <= found.fun + 1e-12
    assert best.sum() == pytest.approx(1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.02, 50))
def test_thm_3_3_mass_orderings_and_uniqueness(seed, beta) -> None:
    rng, reference, acceptable, _ = draw(seed)
    best = pivotrl.functional_minimiser(reference, acceptable, beta)
    mass, rho = best[acceptable].sum(), reference[acceptable].sum()
    assert mass == pytest.approx(pivotrl.acceptable_mass(reference, acceptable, beta))
    assert mass > rho  # strict for 0 < rho < 1
    np.testing.assert_allclose(best, pivotrl.tilted(reference, acceptable.astype(float), beta), atol=1e-12)
    for block in (acceptable, ~acceptable):  # Eq. 14: ratios within each block are the reference's
        np.testing.assert_allclose(
            best[block] / best[block].sum(), reference[block] / reference[block].sum(), atol=1e-9
        )
    other = rng.dirichlet(np.ones(len(reference)))
    assert pivotrl.functional_objective(other, reference, acceptable, beta) > pivotrl.functional_objective(
        best, reference, acceptable, beta
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_thm_3_3_is_the_kl_projection_on_its_own_mass(seed) -> None:
    rng, reference, acceptable, beta = draw(seed)
    best = pivotrl.functional_minimiser(reference, acceptable, beta)
    mass = best[acceptable].sum()
    for _ in range(20):  # any other distribution with the same mass on acceptable actions is further away
        other = np.empty_like(best)
        other[acceptable] = mass * rng.dirichlet(np.ones(acceptable.sum()))
        other[~acceptable] = (1 - mass) * rng.dirichlet(np.ones((~acceptable).sum()))
        if not np.allclose(other, best):
            assert pivotrl.kl(other, reference) > pivotrl.kl(best, reference)


def test_boundaries() -> None:
    reference = np.array([0.2, 0.8])
    np.testing.assert_allclose(pivotrl.functional_minimiser(reference, np.array([True, True]), 0.1), reference)
    np.testing.assert_allclose(pivotrl.functional_minimiser(reference, np.array([True, False]), 1e-4), [1, 0])
    with pytest.raises(ValueError, match="M\\(s\\) is not empty"):
        pivotrl.functional_minimiser(reference, np.array([False, False]), 0.1)
    with pytest.raises(ValueError, match="beta must be positive"):
        pivotrl.tilted(reference, np.zeros(2), 0.0)
