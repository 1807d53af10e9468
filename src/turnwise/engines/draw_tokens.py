"""Samples tokens with temperature, top-k, top-p and min-p. The randomness depends only on each request's own seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from turnwise.engines.engine import Sampling


def uniforms(seeds_N: np.ndarray, step: int | np.ndarray) -> np.ndarray:
    """Returns one uniform random number in (0, 1) per request, from the counter-based generator splitmix64.

    The number depends only on the request's seed and step, not on the rest of the batch. ``step`` is one number for all
    requests, or an array (N,).
    """
    with np.errstate(over="ignore"):
        z = seeds_N.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15) * (np.asarray(step, np.uint64) + np.uint64(1))
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return ((z >> np.uint64(11)).astype(np.float64) + 0.5) / float(1 << 53)


def keep_mask(probs: Tensor, sampling: Sampling) -> Tensor | None:
    """Returns a boolean mask (N, V) of the tokens that top-k, top-p and min-p allow, or None if no filter is set.

    The most likely token is always allowed.
    """
    if sampling.top_k == 0 and sampling.top_p >= 1 and sampling.min_p <= 0:
        return None
    ranked, order = probs.sort(dim=-1, descending=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if sampling.top_k:
        keep[:, sampling.top_k :] = False
    if sampling.top_p < 1:
        keep &= ranked.cumsum(-1) - ranked < sampling.top_p
    if sampling.min_p > 0:
        keep &= ranked >= sampling.min_p * ranked[:, :1]
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter(1, order, keep)


def draw(
    logits_U: Tensor,
    sampling: Sampling,
    seeds_N: np.ndarray,
    step: int | np.ndarray,
    context_N: np.ndarray | None = None,
) -> tuple[Tensor, Tensor]:
    """Samples one token per request and returns the tokens (N,) int64 and their log-probs (N,) float32.

    The log-probs are those of the distribution from which the tokens are sampled: after temperature and filters,
    renormalised. With greedy decoding, they are the log-probs at temperature 1.

    Args:
        logits_U: logits (U, V), one row per distinct context.
        step: index of the token within its action, as one number for all requests or as an array (N,).
        context_N: for each request, the row of ``logits_U`` from which it samples; None: row i belongs to request i.
    """
    logits_U = logits_U.float()
    of = slice(None) if context_N is None else torch.from_numpy(context_N).to(logits_U.device)
    if sampling.temperature == 0:
        tokens = logits_U.argmax(-1)[of]
        return tokens, _chosen(logits_U.log_softmax(-1), tokens, of)
    logp_U = (logits_U / sampling.temperature).log_softmax(-1)
    probs = logp_U.exp()
    keep = keep_mask(probs, sampling)
    if keep is not None:
        logp_U = logp_U.masked_fill(~keep, -torch.inf).log_softmax(-1)
        probs = logp_U.exp()
    # The sum is in double precision, because a float32 sum over a large vocabulary can stay below 1.
    ladder = probs.double().cumsum(-1)[of]
    target = torch.from_numpy(uniforms(seeds_N, step)).to(ladder.device) * ladder[:, -1]
    tokens = torch.searchsorted(ladder, target[:, None]).squeeze(1).clamp_(max=ladder.shape[1] - 1)
    return tokens, _chosen(logp_U, tokens, of)


def _chosen(logp_U: Tensor, tokens_N: Tensor, of: Tensor | slice) -> Tensor:
    rows = torch.arange(len(logp_U), device=logp_U.device)[of]
    return logp_U[rows, tokens_N]
