"""Trains with Muon for matrices and AdamW for the rest, at a learning rate that rises, stays constant and falls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from scripts.recipes.tiny.corpus import Document
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """The Muon optimiser: momentum orthogonalised by Newton-Schulz iteration (K. Jordan, 2024), for all matrices of one
    shape at once.

    ``torch.optim.Muon`` iterates in bfloat16, which a CPU without bfloat16 instructions emulates at several times the
    cost of float32. This optimiser uses the parameters' own precision and Nesterov momentum, and scales the step by
    sqrt(max(1, rows / columns)).
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no caller passes a closure
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append((parameter, parameter.grad))
            for (rows, columns), pairs in by_shape.items():
                moves = []
                for parameter, grad in pairs:
                    state = self.state[parameter]
                    if "momentum" not in state:
                        state["momentum"] = torch.zeros_like(parameter)
                    state["momentum"].lerp_(grad, 1 - group["momentum"])
                    moves.append(grad.lerp(state["momentum"], group["momentum"]))
                size = group["lr"] * max(1.0, rows / columns) ** 0.5
                for (parameter, _), move in zip(pairs, orthogonalise(torch.stack(moves)), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(move, alpha=-size)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Returns approximately U V^T for each matrix U S V^T of a batch (n, rows, columns).

    The singular values of the results are between 0.7 and 1.2.
    """
    # coefficients of the quintic with the steepest slope at 0 that keeps values in that range
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.size(1) > matrices.size(2)
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def optimisers(model: Any, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    """Returns Muon for every matrix except the embedding, and AdamW for the rest."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [Muon(matrices, lr=muon_lr), torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=0.0)]


def schedule(step: int, steps: int, warmup: int = 50, decay: float = 0.3) -> float:
    """Returns the factor on the peak learning rate at step ``step`` of ``steps``.

    It rises linearly over ``warmup`` steps, is constant, and falls linearly over the last share ``decay`` of the steps.
    """
    start = steps * (1 - decay)
    falling = 1.0 if step < start else max(0.02, (steps - step) / max(1.0, steps - start))
    return min((step + 1) / warmup, falling)


def batch_loss(model: Any, documents: list[Document]) -> tuple[Tensor, float]:
    """Returns the summed weighted negative log-likelihood of right-padded documents, and the sum of the weights."""
    longest = max(len(d.ids) for d in documents)
    ids = torch.zeros(len(documents), longest, dtype=torch.long)
    weights = torch.zeros(len(documents), longest)
    for row, document in enumerate(documents):
        ids[row, : len(document.ids)] = torch.tensor(document.ids)
        weights[row, : len(document.ids)] = torch.tensor(document.weights)
    ids, weights = ids.to(model.device), weights.to(model.device)
    # No attention mask is needed, because attention is causal and all padding is to the right of the scored tokens.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    wanted = weights[:, 1:] > 0
    logits = model.lm_head(hidden[wanted])
    nll = F.cross_entropy(logits, ids[:, 1:][wanted], reduction="none")
    weight = weights[:, 1:][wanted]
    return (nll * weight).sum(), float(weight.sum())


class Threads:
    """Computes the gradients of several micro-batches of one step in parallel threads, over shared parameters.

    On two cores this is about 1.5 times as fast as one stream with two threads per operation, because no thread waits
    for the other thread after every small operation.
    """

    def __init__(self, count: int) -> None:
        self.pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,))

    def gradients(self, model: Any, parts: list[list[Document]]) -> float:
        """Sets every ``grad`` to the gradient of the weighted mean loss over all parts, and returns the loss."""
        parameters = list(model.parameters())
        if model.device.type != "cpu":
            parts = [
                [document for part in parts for document in part]
            ]  # on an accelerator, one large batch is the fastest
        total = sum(sum(d.weights[1:]) for part in parts for d in part)

        def one(part: list[Document]) -> tuple[float, tuple[Tensor, ...]]:
            loss, _ = batch_loss(model, part)
            loss = loss / total
            return float(loss.detach()), torch.autograd.grad(loss, parameters)

        results = list(self.pool.map(one, parts))
        for parameter, *pieces in zip(parameters, *(grads for _, grads in results), strict=True):
            parameter.grad = torch.stack(pieces).sum(0) if len(pieces) > 1 else pieces[0]
        return sum(loss for loss, _ in results)
