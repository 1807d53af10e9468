"""Compares the loss and every gradient of a packed rollout tree with those of separate forward passes, one for each
path from the root to a leaf, in a small model. The probe of large models (``rollouts.probe``) compares only log-probs.

The packed tree uses tree attention; the separate passes use the model's own attention. The log-probs of the engine are
also compared with the log-probs of the trainer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turnwise.engines.tree_engine import TreeEngine
from turnwise.models.attention import unwrapped
from turnwise.models.packed_logprobs import score
from turnwise.rollouts.probe import LAST, SEEN, WRITTEN, Example, own_attention, sampled

EXACT, NEAR = 1e-5, 1e-4  # greatest differences: of loss and gradient (relative), and of log-probs (nats)
TRUNK = 150  # number of tokens of the prefix that all paths share; the probe's prefix is shorter
LONG = 3  # turns and observations are this many times as long as those of the probe


@dataclass(frozen=True, slots=True)
class Distance:
    """Differences between the results on a packed tree and on its separate paths.

    Attributes:
        loss: absolute difference of the loss, divided by the absolute loss on the paths or by 1, whichever is greater.
        gradient: largest absolute difference of an entry of the gradient, divided by the largest absolute entry of the
            gradient on the paths or by 1, whichever is greater.
        sampled: largest difference between the engine's log-prob and the trainer's log-prob of a token, in nats.
    """

    loss: float
    gradient: float
    sampled: float

    @property
    def exact(self) -> bool:
        return self.loss <= EXACT and self.gradient <= EXACT and self.sampled <= NEAR


def against_paths(model: Any, copy: bool = True, seed: int = 0) -> Distance:
    """Runs a small causal LM on a packed tree and on each path of this tree alone, and returns the differences.

    Only the gradients of trained parameters are compared. The model must use tree attention and have float32 weights.

    Args:
        model: the model, with or without adapters. Its ``.grad`` attributes are not changed.
        copy: whether the engine samples from a copy of the model that has the adapters merged into the weights.
        seed: seed of the random tokens and advantages.
    """
    draw = random.Random(seed)
    vocabulary = len(unwrapped(model).get_output_embeddings().weight)
    trunk = [draw.randrange(3, vocabulary) for _ in range(TRUNK)]
    seen = [[draw.randrange(3, vocabulary) for _ in range(LONG * SEEN)] for _ in range(2)]
    engine = TreeEngine(end_ids=(), copy=copy)
    engine.load_weights(model, 0)
    drawn = sampled(engine, (trunk, seen), LONG * WRITTEN, LONG * LAST)
    example = Example(trunk, seen, [sample.ids for sample in drawn])
    sampled_K = torch.tensor([x for t in example.order for x in drawn[t].logprobs])
    advantage_K = torch.tensor([draw.uniform(-1, 1) for _ in sampled_K])

    packed_K = score(model, example.packed)[0][example.packed.items.unique_K]
    loss, gradient = _of(model, (packed_K * advantage_K).mean())
    with own_attention(model):
        own_K = torch.cat([_path(model, example, row) for row in range(len(example.paths))])
        own_loss, own_gradient = _of(model, (own_K * advantage_K).mean())
    largest = max(1.0, *(float(g.abs().max()) for g in own_gradient))
    return Distance(
        loss=abs(loss - own_loss) / max(1.0, abs(own_loss)),
        gradient=max(float((x - y).abs().max()) for x, y in zip(gradient, own_gradient, strict=True)) / largest,
        sampled=float((sampled_K - packed_K.detach()).abs().max()),
    )


def _path(model: Any, example: Example, row: int) -> Tensor:
    """Returns the log-probs of the tokens that are counted for path number ``row``, from a forward pass over this path.

    A token that several paths share is counted only for the first of these paths.
    """
    items = [k for k, own in enumerate(example.row) if own == row]
    logits = model(input_ids=example.paths[row : row + 1], use_cache=False).logits[0].float()
    logs = logits[[example.place[k] for k in items]].log_softmax(-1)
    return logs.gather(-1, example.target_K[items][:, None])[:, 0]


def _of(model: Any, loss: Tensor) -> tuple[float, list[Tensor]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, trained, allow_unused=True)
    return float(loss), [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]
