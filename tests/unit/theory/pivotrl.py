"""PivotRL's two theorems (arXiv:2603.21383, section 3.2) on finite action spaces.

One state at a time: a policy or reference is an array (A,) of probabilities over its A actions, a reward an array (A,), the
acceptable set M(s) a boolean array (A,). The reference is positive everywhere, as the paper assumes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def kl(p: Array, q: Array) -> float:
    """KL(p || q) in nats, with 0 log 0 = 0. ``q`` is positive wherever ``p`` is."""
    support = p > 0
    return float(np.sum(p[support] * np.log(p[support] / q[support])))


def tilted(reference: Array, reward: Array, beta: float) -> Array:
    """The KL path pi_beta(a) proportional to pi_0(a) exp(r(a) / beta) (Theorem 3.2)."""
    logits = np.log(reference) + reward / beta
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def natural_gradient(policy: Array, reward: Array) -> Array:
    """Gradient of J(pi) = E_pi[r] in the Fisher geometry of T_pi: r - E_pi[r]."""
    return reward - policy @ reward


def fisher_norm(policy: Array, direction: Array) -> float:
    """sqrt(E_pi[v^2]), the length of a tangent vector v of T_pi."""
    return math.sqrt(float(policy @ direction**2))


def grpo_score(reference: Array, reward: Array, beta: float) -> float:
    """Population GRPO score gamma along the KL path (Eq. 9); the rewards differ.

    Theorem 3.2: it equals ``fisher_norm(pi, natural_gradient(pi, r)) / beta**2``, the reward's std over beta^2.
    """
    policy = tilted(reference, reward, beta)
    centred = natural_gradient(policy, reward)
    std = math.sqrt(float(policy @ centred**2))
    path_velocity = -centred / beta**2  # d log pi_beta / d beta
    return -float(policy @ (centred / std * path_velocity))


def acceptable_mass(reference: Array, acceptable: NDArray[np.bool_], beta: float) -> float:
    """q_beta, the mass that the regularised optimum puts on acceptable actions (Eqs. 12-13)."""
    rho = float(reference[acceptable].sum())
    # rho e^(1/beta) / (1 - rho + rho e^(1/beta)), divided through by e^(1/beta), which overflows for small beta
    return rho / (rho + (1 - rho) * math.exp(-1 / beta))


def functional_objective(policy: Array, reference: Array, acceptable: NDArray[np.bool_], beta: float) -> float:
    """-E_pi[r_func] + beta KL(pi || pi_0), one state's term of Eq. 11."""
    return -float(policy[acceptable].sum()) + beta * kl(policy, reference)


def functional_minimiser(reference: Array, acceptable: NDArray[np.bool_], beta: float) -> Array:
    """pi*_beta, the unique minimiser of :func:`functional_objective`: both blocks of pi_0 rescaled (Eq. 16). ``acceptable`` is
    not empty.
    """
    shrink = math.exp(-1 / beta)
    # q / rho and (1 - q) / (1 - rho), without the cancellation that 1 - q suffers where q is nearly 1
    inside = 1 / (reference[acceptable].sum() + reference[~acceptable].sum() * shrink)
    return reference * np.where(acceptable, inside, inside * shrink)
