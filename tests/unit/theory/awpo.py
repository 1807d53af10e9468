"""AWPO's decomposition, identity and bounds (arXiv:2512.19126, section 3.1 and appendix A) on finite groups.

One group at a time: ``out`` and ``reasoning`` are arrays (K,) of the rewards of its K samples, and their sum is the mixed
reward. Nothing here is estimated: each function is one side of a statement that the tests hold against the other.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def dispersion(rewards: Array) -> float:
    """The population standard deviation within the group (Eq. 18)."""
    return float(np.sqrt(np.mean(centred(rewards) ** 2)))


def centred(rewards: Array) -> Array:
    """Rewards minus the group's mean (Eq. 28)."""
    return rewards - rewards.mean()


def advantage(rewards: Array, eps: float) -> Array:
    """Within-group normalised advantages (Eqs. 2, 19). ``eps`` is positive, or the rewards differ."""
    return centred(rewards) / (dispersion(rewards) + eps)


def decomposition(out: Array, reasoning: Array, eps: float) -> tuple[Array, Array, Array]:
    """Lemma 3.1: the anchor term, the auxiliary perturbation and the residual, whose sum is A_mix exactly.

    The residual is eps (s_mix - s_out) / (s_mix (s_mix + eps)) A_out (Eq. 37), so it vanishes linearly in eps.
    The mixed reward has spread: the lemma divides by it.
    """
    s_out, s_mix = dispersion(out), dispersion(out + reasoning)
    a_out = advantage(out, eps) if s_out + eps > 0 else np.zeros_like(out)
    anchor = s_out / s_mix * a_out
    perturbation = centred(reasoning) / (s_mix + eps)
    residual = eps * (s_mix - s_out) / (s_mix * (s_mix + eps)) * a_out
    return anchor, perturbation, residual


def mean_product(out: Array, reasoning: Array, eps: float) -> float:
    """E_j[A_out A_mix] by identity (46): the variance of the outcome and its covariance with the judge's reward, both over
    (s_out + eps) (s_mix + eps)."""
    covariance = float(np.mean(centred(out) * centred(reasoning)))
    s_out, s_mix = dispersion(out), dispersion(out + reasoning)
    return (s_out**2 + covariance) / ((s_out + eps) * (s_mix + eps))


def gate_ratio(out: Array, reasoning: Array, eps: float) -> float:
    """rho = s_mix / (s_out + s_mix + eps) (Eq. 20). ``eps`` is positive, or a reward has spread."""
    s_out, s_mix = dispersion(out), dispersion(out + reasoning)
    return s_mix / (s_out + s_mix + eps)


def ratio_floor(epsilon_mix: float, s_mix: float = math.inf, eps: float = 0.0) -> float:
    """Theorem 3.5: rho <= epsilon_mix implies s_out / s_mix >= this.

    With the defaults it is kappa_min = (1 - epsilon_mix) / epsilon_mix (Eq. 69), for negligible ``eps``; with the group's
    ``s_mix`` and rho's ``eps`` it is the exact bound, kappa_min - eps / s_mix (Eq. 74).
    """
    return (1 - epsilon_mix) / epsilon_mix - eps / s_mix


def gradient_cosine(a: Array, b: Array, features: Array) -> float:
    """cos(g_out, g_mix) of g = Z a / K (Eqs. 55-58), with score features Z of shape (D, K) and coefficients (K,)."""
    g, h = features @ a, features @ b
    return float(g @ h / (np.linalg.norm(g) * np.linalg.norm(h)))


def cosine_floor(correlation: float, delta: float) -> float:
    """A floor of the gradients' cosine, from the cosine of their coefficients and the spectral deviation of Assumption A.3.

    Eq. 63 has (correlation - delta) / (1 + delta), which holds only where it is not negative: the proof divides a lower bound
    of the numerator by an upper bound of the denominator. Where the numerator's bound is negative the denominator's lower
    bound, 1 - delta, has to stand there. Eqs. 67 and 68 inherit this.
    """
    numerator = correlation - delta
    return max(-1.0, numerator / (1 + delta if numerator >= 0 else 1 - delta))


def hyper_advantage(a_out: Array, a_mix: Array, weight: float, difficulty: float) -> Array:
    """A_hyper, the advantage of Eq. 23."""
    return difficulty * ((1 - weight) * a_out + weight * a_mix)


def printed_factor(ratio: Array, advantages: Array, radius: float) -> Array:
    """The factor of the score in the gradient as Eq. 83 has it: the minimum is over the ratios alone."""
    return np.minimum(ratio, np.clip(ratio, 1 - radius, 1 + radius)) * advantages


def clipped_objective(ratio: Array, advantages: Array, radius: float) -> Array:
    """The objective of a reply (Eq. 25): the minimum is over the products."""
    return np.minimum(ratio * advantages, np.clip(ratio, 1 - radius, 1 + radius) * advantages)


def contribution_bound(score: float, radius: float, largest: float, difficulty: float) -> float:
    """Eq. 87: the largest norm of a reply's share in the gradient, for scores of a norm of at most ``score`` and
    advantages of at most ``largest``."""
    return score * (1 + radius) * largest * difficulty
