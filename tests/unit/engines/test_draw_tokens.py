"""Drawing: worked filters, and frequencies against the distribution that is claimed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from turnwise.engines.decoding import draw, keep_mask, uniforms
from turnwise.engines.engine import Sampling


def test_filters_worked_by_hand() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3]])
    assert keep_mask(probs, Sampling(top_k=2)).tolist() == [[False, True, False, True]]
    assert keep_mask(probs, Sampling(top_p=0.6)).tolist() == [[False, True, False, True]]
    assert keep_mask(probs, Sampling(top_p=0.4)).tolist() == [[False, True, False, False]]
    assert keep_mask(probs, Sampling(min_p=0.5)).tolist() == [[False, True, True, True]]
    assert keep_mask(probs, Sampling()) is None


def test_logprob_is_of_the_distribution_drawn_from() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()
    token, logp = draw(logits, Sampling(top_k=2), np.array([3], dtype=np.uint64), 0)
    expected = {1: np.log(0.4 / 0.7), 3: np.log(0.3 / 0.7)}
    assert logp.item() == pytest.approx(expected[token.item()], abs=1e-6)
    hot, logp_hot = draw(logits, Sampling(temperature=2.0), np.array([3], dtype=np.uint64), 0)
    root = np.sqrt([0.1, 0.4, 0.2, 0.3])
    assert logp_hot.item() == pytest.approx(np.log(root[hot.item()] / root.sum()), abs=1e-6)


def test_frequencies_follow_the_distribution() -> None:
    probs = torch.tensor([0.1, 0.4, 0.2, 0.3])
    tokens, _ = draw(probs.log().expand(40_000, 4), Sampling(), np.arange(40_000, dtype=np.uint64), 0)
    found = torch.bincount(tokens, minlength=4) / 40_000
    assert (found - probs).abs().max() < 0.01


def test_steps_and_seeds_give_unrelated_numbers() -> None:
    seeds = np.arange(10_000, dtype=np.uint64)
    first, second = uniforms(seeds, 0), uniforms(seeds, 1)
    assert first.min() > 0 and first.max() < 1
    assert abs(first.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.03
