"""Compares the update of a branching tree with the same update computed path by path by the model's own forward pass.

The probe (``rollouts.probe``) measures a few tokens of a large model. This module measures the loss and every gradient
of a small model, with windows as configured, and compares the engine's log-probs of its samples with the trainer's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from turnwise.engines.tree import TreeEngine
from turnwise.models.attention import unwrapped
from turnwise.models.score import score
from turnwise.rollouts.probe import LAST, SEEN, WRITTEN, Example, own_attention, sampled

EXACT, NEAR = 1e-5, 1e-4  # limits: of loss and gradients, relative; of the engine's log-probs, in nats
TRUNK = 150  # tokens of the trunk, more than in the probe
LONG = 3  # turns have this many times the tokens of the probe's turns


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance between packed or sampled numbers and those of plain paths.

    Attributes:
        loss: difference of the losses, relative to their size or to 1, whichever is more.
        gradient: largest difference of two gradient entries, relative to the largest entry or to 1, whichever is more.
        sampled: largest difference between a log-prob of the engine and the trainer's, in nats.
    """

    loss: float
    gradient: float
    sampled: float

    @property
    def exact(self) -> bool:
        return self.loss <= EXACT and self.gradient <= EXACT and self.sampled <= NEAR


def against_paths(model: Any, copy: bool = True, seed: int = 0) -> Distance:
    """Measures a small causal LM with tree attention, in float32; gradients are those of its trained parameters.

    Args:
        model: with or without adapters; its ``.grad`` attributes are not touched.
        copy: whether the engine samples from a plain copy with adapters merged in.
        seed: of the tokens and the advantages.
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
    """Returns log-probs of the tokens that are counted to one path, from a separate forward pass."""
    items = [k for k, own in enumerate(example.row) if own == row]
    logits = model(input_ids=example.paths[row : row + 1], use_cache=False).logits[0].float()
    logs = logits[[example.place[k] for k in items]].log_softmax(-1)
    return logs.gather(-1, example.target_K[items][:, None])[:, 0]


def _of(model: Any, loss: Tensor) -> tuple[float, list[Tensor]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, trained, allow_unused=True)
    return float(loss), [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]
