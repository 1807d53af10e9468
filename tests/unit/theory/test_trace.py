"""Propositions 1-3 of TRACE on random processes, each against something that does not use it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.unit.theory import trace

from turnwise.methods.trace import trace_prefix_allocation, trace_root_allocation, trace_same_outcome

SEEDS = range(12)


def draw(seed: int) -> trace.Process:
    """A random process of about forty histories, episodes of different lengths."""
    rng = np.random.default_rng(seed)
    parent, step, open_nodes = [-1], [1.0], [0]
    while open_nodes and len(parent) < 40:
        node = open_nodes.pop(0)
        share = rng.dirichlet(np.ones(rng.integers(1, 4)))
        for probability in share:
            parent.append(node)
            step.append(float(probability))
            if rng.random() < 0.7:
                open_nodes.append(len(parent) - 1)
    return trace.Process(np.array(parent), np.array(step), rng.integers(0, 2, len(parent)).astype(float))


def paths(process: trace.Process):
    """Every episode from every history it passes through: (histories, probability from the prompt)."""
    for leaf in np.flatnonzero(process.leaves()):
        path = [int(leaf)]
        while path[-1] > 0:
            path.append(int(process.parent_N[path[-1]]))
        path = path[::-1]
        yield path, float(np.prod(process.step_N[path]))


def by_hand() -> trace.Process:
    """The prompt goes left (1/2, wins), or right (1/2), from where one of four continuations wins."""
    return trace.Process(
        np.array([-1, 0, 0, 2, 2]), np.array([1, 0.5, 0.5, 0.25, 0.75]), np.array([0, 1.0, 0, 1.0, 0.0])
    )


def test_a_process_worked_by_hand() -> None:
    process = by_hand()
    assert process.value().tolist() == pytest.approx([0.625, 1, 0.25, 1, 0])
    assert trace.group_risk(process, 0, 1) == pytest.approx(0.625 * 0.375)
    assert trace.group_risk(process, 1, 1) == pytest.approx(0.5 * 0.25 * 0.75)
    assert trace.group_risk(process, 2, 1) == 0
    assert trace.group_risk(process, 0, 4) == pytest.approx(0.625 * 0.375 / 4)
    # revisions: to 1 or 1/4 first, then from 1/4 to 1 or 0
    second = 0.25 * 0.75**2 + 0.75 * 0.25**2
    assert trace.quadratic_variation(process)[0] == pytest.approx(0.375**2 / 2 + (0.375**2 + second) / 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_prop_1_more_history_never_predicts_worse(seed) -> None:
    process = draw(seed)
    deepest = int(process.depth().max())
    for continuations in (1, 3):
        risks = [trace.group_risk(process, turn, continuations) for turn in range(deepest + 1)]
        assert all(later <= earlier + 1e-12 for earlier, later in pairwise(risks))
        assert risks[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_prop_2_the_quadratic_variation_is_the_bernoulli_variance(seed) -> None:
    process = draw(seed)
    value = process.value()
    moved = np.zeros(len(value))
    reached = np.zeros(len(value))
    for path, probability in paths(process):  # by enumeration of episodes, not by recursion
        squares = np.diff(value[path]) ** 2
        for place, history in enumerate(path):
            moved[history] += probability * squares[place:].sum()
            reached[history] += probability
    np.testing.assert_allclose(moved / reached, value * (1 - value), atol=1e-9)
    np.testing.assert_allclose(trace.quadratic_variation(process), value * (1 - value), atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_prop_3_no_uniform_allocation_activates_more(seed) -> None:
    rng = np.random.default_rng(seed)
    prompts, size, budget = 12, 4, 24
    value = rng.beta(0.5, 0.5, prompts)
    best = trace.gradient_energy(trace.root_activation(value, trace_root_allocation(value, budget)))
    for groups in (budget // size, budget // 2):
        uniform = np.zeros(prompts, np.int64)
        uniform[:groups] = budget // groups
        assert best >= trace.gradient_energy(trace.root_activation(value, uniform)) - 1e-12
    strict = trace.gradient_energy(trace.root_activation(value, np.full(prompts, 2)))
    assert best > strict  # strict where uniform is not optimal

    reward = rng.integers(0, 2, prompts).astype(float)
    chosen = trace_prefix_allocation(trace_same_outcome(value, reward), budget)
    best = trace.gradient_energy(trace.prefix_activation(value, reward, chosen))
    assert best > trace.gradient_energy(trace.prefix_activation(value, reward, np.full(prompts, 2)))
