"""Every statement is checked against something that does not use it: finite differences, a linear solve, an optimiser."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests.unit.theory import pivotrl

from turnwise.methods.credit import GroupAdvantage
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
