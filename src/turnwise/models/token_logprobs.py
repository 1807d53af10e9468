"""Computes the log-probs and entropies of chosen tokens from hidden states.

In shapes, ``K`` is a flat axis of trained tokens, ``D`` the hidden size, and ``V`` the vocabulary size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

CPU_LOGITS = 1 << 23  # most logits of a chunk on a CPU: 32 MiB in float32


def selected_logprobs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
    entropy: bool = True,
) -> tuple[Tensor, Tensor]:
    """Returns log-probs of chosen tokens and the entropies of the next-token distributions, both in nats.

    The distributions are ``softmax(hidden @ weight.T / temperature)``. Only the logits of ``chunk`` positions are in
    memory at a time, and the backward pass recomputes them. Matrix products use the dtype of ``hidden``, and the
    softmax uses at least float32. Autocast is ignored, so that the forward and backward passes have the same logits.

    Args:
        hidden: last hidden states (..., D), each at the position that predicts its target.
        weight: output embedding (V, D).
        targets: ids (...) of the chosen tokens.
        temperature: temperature by which the logits are divided, as in sampling.
        chunk: number of positions whose logits are in memory at once; None: 1024, and fewer on a CPU if the vocabulary
            is large, because each of the threads that run side by side holds several copies of a chunk.
        entropy: whether to compute the entropies; otherwise an empty tensor is returned for them.

    Returns:
        Log-probs (...) and entropies (...), in float32 or wider. Both can be differentiated once, with respect to
        ``hidden`` and ``weight``.

    Raises:
        ValueError: the shapes do not match, or ``temperature`` or ``chunk`` is not positive.
    """
    if hidden.shape[:-1] != targets.shape or weight.ndim != 2 or hidden.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)} and targets {tuple(targets.shape)} do not "
            "match: expected (..., D), (V, D) and (...)"
        )
    if not temperature > 0:
        raise ValueError(
            f"temperature must be positive, got {temperature}; greedy actions have no log-prob to train on"
        )
    if chunk is None:
        chunk = 1024 if hidden.device.type != "cpu" else max(64, min(1024, CPU_LOGITS // len(weight)))
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    rows = hidden.reshape(-1, hidden.shape[-1])
    logprobs, entropies = _SelectedLogprobs.apply(rows, weight, targets.reshape(-1), float(temperature), chunk, entropy)
    if targets.ndim == 1:
        return logprobs, entropies  # no views, because FSDP2 warns of wrong gradients if a pass returns one
    return logprobs.view(targets.shape), entropies.view(targets.shape) if entropy else entropies


class _SelectedLogprobs(torch.autograd.Function):
    """Maps hidden states (K, D), weight (V, D) and targets (K,) to log-probs (K,) and entropies (K,).

    If ``entropy`` is False, the entropies are not computed and have shape (0,).
    """

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, rows: Tensor, weight: Tensor, targets_K: Tensor, temperature: float, chunk: int, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(rows.dtype, torch.float32)
        logsumexp_K = rows.new_empty(len(rows), dtype=wide)
        logprobs_K = torch.empty_like(logsumexp_K)
        entropy_K = torch.empty_like(logsumexp_K) if entropy else logsumexp_K.new_empty(0)
        for start in range(0, len(rows), chunk):
            part = slice(start, start + chunk)
            logits = _logits(rows[part], weight, temperature)
            logsumexp_K[part] = logits.logsumexp(-1)
            chosen = logits.gather(-1, targets_K[part, None]).squeeze(-1)
            logprobs_K[part] = chosen - logsumexp_K[part]
            if entropy:
                probs = (logits - logsumexp_K[part, None]).exp_()
                entropy_K[part] = logsumexp_K[part] - probs.mul_(logits).sum(-1)
        ctx.save_for_backward(rows, weight, targets_K, logsumexp_K, entropy_K)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)  # if only the log-probs have a gradient, the backward pass skips the entropies
        return logprobs_K, entropy_K

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad_logprobs_K: Tensor | None, grad_entropy_K: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        rows, weight, targets_K, logsumexp_K, entropy_K = ctx.saved_tensors
        need_rows, need_weight = ctx.needs_input_grad[:2]
        grad_rows = torch.empty_like(rows) if need_rows else None
        grad_weight = torch.zeros_like(weight, dtype=logsumexp_K.dtype) if need_weight else None
        if grad_logprobs_K is None:
            grad_logprobs_K = torch.zeros_like(logsumexp_K)
        for start in range(0, len(rows), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logs = _logits(rows[part], weight, ctx.temperature).sub_(logsumexp_K[part, None])
            probs = logs.exp()
            # d logprob / d logits = onehot - p, and d entropy / d logits = -p (log p + H)
            grad = probs * -grad_logprobs_K[part, None]
            grad.scatter_add_(-1, targets_K[part, None], grad_logprobs_K[part, None])
            if grad_entropy_K is not None:
                grad.sub_(probs.mul_(logs.add_(entropy_K[part, None])).mul_(grad_entropy_K[part, None]))
            grad = grad.div_(ctx.temperature).to(rows.dtype)
            with torch.autocast(rows.device.type, enabled=False):
                if grad_rows is not None:
                    grad_rows[part] = grad @ weight.to(rows.dtype)
                if grad_weight is not None:
                    grad_weight += grad.T @ rows[part]
        return grad_rows, grad_weight.to(weight.dtype) if grad_weight is not None else None, None, None, None, None


def _logits(rows: Tensor, weight: Tensor, temperature: float) -> Tensor:
    with torch.autocast(rows.device.type, enabled=False):
        logits = F.linear(rows, weight.to(rows.dtype)).to(torch.promote_types(rows.dtype, torch.float32))
    return logits if temperature == 1 else logits.div_(temperature)
