"""AWPO's statements held against their definitions on random groups, and against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.theory.awpo import (
    Array,
    advantage,
    clipped_objective,
    contribution_bound,
    cosine_floor,
    decomposition,
    dispersion,
    gate_ratio,
    gradient_cosine,
    hyper_advantage,
    mean_product,
    printed_factor,
    ratio_floor,
)

EPS = st.sampled_from([0.0, 1e-6, 1e-2, 1.0])


@st.composite
def groups(draw: st.DrawFn) -> tuple[Array, Array]:
    """Outcomes on the grid of a graded reward, a judge's scores on its own; both with spread, and their sum too."""
    size = draw(st.integers(2, 8))
    out = np.array(draw(st.lists(st.integers(0, 8), min_size=size, max_size=size))) / 4
    reasoning = np.array(draw(st.lists(st.integers(0, 20), min_size=size, max_size=size))) / 20
    assume(np.ptp(out) > 0 and np.ptp(out + reasoning) > 0)
    return out, reasoning


few = settings(max_examples=60, deadline=None)


@few
@given(groups(), EPS)
def test_lemma_3_1(group: tuple[Array, Array], eps: float) -> None:
    out, reasoning = group
    anchor, perturbation, residual = decomposition(out, reasoning, eps)
    assert anchor + perturbation + residual == pytest.approx(advantage(out + reasoning, eps), abs=1e-12)


@few
@given(groups(), EPS)
def test_identity_46(group: tuple[Array, Array], eps: float) -> None:
    out, reasoning = group
    direct = float(np.mean(advantage(out, eps) * advantage(out + reasoning, eps)))
    assert mean_product(out, reasoning, eps) == pytest.approx(direct, abs=1e-12)
    assert abs(direct) <= 1 + 1e-12  # (50)
    assert np.corrcoef(out, out + reasoning)[0, 1] == pytest.approx(mean_product(out, reasoning, 0.0), abs=1e-9)


@few
@given(groups(), EPS, st.floats(0.05, 0.95))
def test_theorem_3_5(group: tuple[Array, Array], eps: float, epsilon_mix: float) -> None:
    out, reasoning = group
    ratio = dispersion(out) / dispersion(out + reasoning)
    if gate_ratio(out, reasoning, eps) <= epsilon_mix:
        assert ratio >= ratio_floor(epsilon_mix, dispersion(out + reasoning), eps) - 1e-12
    if eps == 0 and abs(ratio - ratio_floor(epsilon_mix)) > 1e-9:  # then the gate is the bound: neither is the tighter
        assert (gate_ratio(out, reasoning, 0.0) <= epsilon_mix) == (ratio >= ratio_floor(epsilon_mix))


def test_the_floor_does_not_bound_the_correlation_of_a_judge_who_disagrees() -> None:
    """Without Assumption 3.2 the gate lets a reversed ranking through: s_out / s_mix is above its floor, the mean product not."""
    out, reasoning = np.array([0.0, 0.3]), np.array([1.0, 0.0])
    assert gate_ratio(out, reasoning, 0.0) < 0.75
    assert dispersion(out) / dispersion(out + reasoning) > ratio_floor(0.75)
    assert mean_product(out, reasoning, 0.0) == pytest.approx(-1)


@few
@given(st.integers(0, 2**32 - 1), st.floats(0, 0.95))
def test_the_cosine_floor(seed: int, delta: float) -> None:
    """Features whose Gram matrix on the plane of both coefficient vectors has its eigenvalues in [1 - delta, 1 + delta]."""
    rng = np.random.default_rng(seed)
    frame = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    gram = frame @ np.diag([1 - delta, 1 + delta * rng.uniform(-1, 1)]) @ frame.T
    a, b = rng.normal(size=(2, 2))
    correlation = float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))
    features = np.linalg.cholesky(gram).T
    assert gradient_cosine(a, b, features) >= cosine_floor(correlation, delta) - 1e-9


def test_equation_63_does_not_hold_where_its_numerator_is_negative() -> None:
    """Orthogonal coefficients, Gram matrix I - delta (off the diagonal): the cosine is -delta, below -delta / (1 + delta)."""
    delta = 0.5
    features = np.linalg.cholesky(np.array([[1.0, -delta], [-delta, 1.0]])).T
    cosine = gradient_cosine(np.array([1.0, 0.0]), np.array([0.0, 1.0]), features)
    assert cosine == pytest.approx(-delta)
    assert cosine < -delta / (1 + delta)
    assert cosine >= cosine_floor(0.0, delta) == -1.0


@few
@given(groups(), EPS, st.floats(0, 1), st.sampled_from([0.5, 1.5]), st.integers(0, 2**32 - 1))
def test_equations_85_to_88(
    group: tuple[Array, Array], eps: float, weight: float, difficulty: float, seed: int
) -> None:
    """The bounds on A_hyper, its factor, a reply's share in the gradient, and the second moment of their mean."""
    out, reasoning = group
    a_out, a_mix = advantage(out, eps), advantage(out + reasoning, eps)
    largest = float(max(np.abs(a_out).max(), np.abs(a_mix).max()))
    hyper = hyper_advantage(a_out, a_mix, weight, difficulty)
    assert np.abs(hyper).max() <= largest * difficulty + 1e-12  # (85)
    rng, radius = np.random.default_rng(seed), 0.2
    factor = printed_factor(np.exp(rng.normal(size=hyper.shape)), hyper, radius)
    assert np.abs(factor).max() <= (1 + radius) * largest * difficulty + 1e-12  # (86)
    scores = rng.normal(size=(3, len(hyper)))
    shares = scores * factor
    bound = contribution_bound(float(np.linalg.norm(scores, axis=0).max()), radius, largest, difficulty)
    assert np.linalg.norm(shares, axis=0).max() <= bound + 1e-9  # (87)
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * len(hyper))).reshape(len(hyper), -1)  # all of them, equally likely
    means = shares @ signs / len(hyper)  # of shares with these signs: independent, of mean 0
    assert np.mean(np.linalg.norm(means, axis=0) ** 2) <= bound**2 / len(hyper) + 1e-9  # (88)


def test_equation_88_needs_contributions_without_a_common_mean() -> None:
    """Its 1/B is that of independent shares of mean 0: of B equal shares, the mean has the second moment of one."""
    shares = np.ones((1, 4))
    second = float(np.mean(np.linalg.norm(shares, axis=0) ** 2))
    assert np.linalg.norm(shares.mean(1)) ** 2 == pytest.approx(second)  # Eq. 88 would have a fourth of it


def test_equation_83_is_not_the_factor_of_equation_25_for_a_negative_advantage() -> None:
    """Where A < 0 and r > 1 + e, the minimum of Eq. 25 is r A, which (86) does not bound; Eq. 83 has (1 + e) A."""
    ratio, negative = np.array([10.0]), np.array([-1.0])
    assert printed_factor(ratio, negative, 0.2) == pytest.approx(-1.2)
    assert clipped_objective(ratio, negative, 0.2) == pytest.approx(-10.0)
    assert clipped_objective(ratio, -negative, 0.2) == printed_factor(ratio, -negative, 0.2) == pytest.approx(1.2)
