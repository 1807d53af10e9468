"""First weights that can copy: induction heads (C. Olsson et al., arXiv:2209.11895) set by hand, to be trained like all others.

A model of two million parameters finds them by itself only after many times the steps that it takes to learn the rest. Heads
of the lowest layer write beside each token which one stood before it; heads of the next look for places where the present
token stood before, and bring what followed there. Rotary positions turn the high frequencies too fast for a look-up by
content and serve to tell neighbours apart; the low ones hardly turn within a few hundred tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SPREAD, _CONSTANT = 0.1, 0.3  # of a token's code; of the residual's first channel, the same for all
_FORM = 5  # channels that tell a word with a blank before it from the same word without
_NEAR, _FAR = 4, 13  # pairs of channels of a head: the fastest, to tell neighbours apart; the slowest, to compare codes
_SHARP = 2.45  # of queries and of keys: a score is up to its square times the root of the head's width
_COPIED = 3.0  # a copied code beside the present token's own


@torch.no_grad()
def install(model: Any, tokenizer: Any, seed: int) -> None:
    """Set embeddings and two heads of each of the two lowest layers; the rest stays as it was drawn.

    The residual's channels: one constant, then the token's code, then the codes of the tokens one and two places before.

    Args:
        model: a fresh Qwen3 or Llama with at least two layers, four heads and two key heads.
        seed: of the codes.
    """
    config = model.config
    width, half = config.head_dim, config.head_dim // 2
    code = torch.arange(1, 2 * width)  # channels
    before, last = torch.arange(2 * width, 3 * width), torch.arange(3 * width, config.hidden_size)
    embedding: Tensor = model.get_input_embeddings().weight
    embedding.zero_()
    embedding[:, 0] = _CONSTANT
    embedding[: len(tokenizer), 1 : 2 * width] = codes(tokenizer, len(code), seed)
    scale = float(embedding[: len(tokenizer)].square().mean().sqrt())

    frequency = 1.0 / config.rope_parameters["rope_theta"] ** (torch.arange(half) / half)
    first = model.model.layers[0].self_attn
    heads = _Heads(first, width)
    heads.clear((0, 1), (0,))
    near = torch.arange(_NEAR)
    heads.key(0)[near, 0] = 1.0
    for head, (distance, place) in enumerate(((1, before), (2, last))):
        turned = distance * frequency[:_NEAR]
        heads.query(head)[near, 0] = turned.cos()
        heads.query(head)[near + half, 0] = -turned.sin()
        heads.output(head)[place, torch.arange(len(place))] = scale  # a value is the code by the residual's scale
    heads.value(0)[torch.arange(width), code[:width]] = 1.0
    heads.sharpen((0, 1), (0,), torch.cat([near, near + half]), width / len(near), _CONSTANT / scale)

    second = model.model.layers[1].self_attn
    heads = _Heads(second, width)
    heads.clear((0, heads.count // 2), (0, 1))
    far = torch.arange(half - _FAR, half)
    compared = torch.cat([far, far + half])
    number = torch.arange(len(compared))
    scale = float(2**0.5 * scale)  # the layer below has written as much again
    for head, group, part in ((0, 0, code[:width]), (heads.count // 2, 1, code[width:])):
        heads.query(head)[compared, code[number]] = 1.0
        heads.key(group)[compared, before[number]] = 1.0
        heads.value(group)[torch.arange(len(part)), part] = 1.0
        heads.output(head)[part, torch.arange(len(part))] = _COPIED * scale
    heads.sharpen((0, heads.count // 2), (0, 1), compared, width / len(compared), _SPREAD / scale)


def codes(tokenizer: Any, channels: int, seed: int) -> Tensor:
    """A random code for each token, (tokens, channels). A word has the same with and without a blank before it, up to ``_FORM``
    channels that say which it is.
    """
    generator = torch.Generator().manual_seed(seed)
    found = torch.zeros(len(tokenizer), channels)
    forms = torch.randn(2, _FORM, generator=generator)
    known: dict[str, Tensor] = {}
    for token, number in sorted(tokenizer.get_vocab().items(), key=lambda pair: pair[1]):
        word = token.removeprefix("Ġ") or token
        if word not in known:
            known[word] = torch.randn(channels - _FORM, generator=generator)
        found[number] = torch.cat([known[word], forms[int(word != token)]])
    return _SPREAD * found


class _Heads:
    """The rows and columns of an attention's matrices by head; ``group`` numbers the heads of keys and values."""

    def __init__(self, attention: Any, width: int) -> None:
        self.attention, self.width = attention, width
        self.count = attention.q_proj.weight.shape[0] // width

    def clear(self, heads: Sequence[int], groups: Sequence[int]) -> None:
        """Zero all that these heads read and write."""
        for head in heads:
            self.query(head).zero_()
            self.output(head).zero_()
        for group in groups:
            self.key(group).zero_()
            self.value(group).zero_()

    def query(self, head: int) -> Tensor:
        return self._rows(self.attention.q_proj.weight, head)

    def key(self, group: int) -> Tensor:
        return self._rows(self.attention.k_proj.weight, group)

    def value(self, group: int) -> Tensor:
        return self._rows(self.attention.v_proj.weight, group)

    def output(self, head: int) -> Tensor:
        found: Tensor = self.attention.o_proj.weight[:, head * self.width : (head + 1) * self.width]
        return found

    def sharpen(
        self, heads: Sequence[int], groups: Sequence[int], channels: Tensor, spread: float, size: float
    ) -> None:
        """Bring queries and keys in ``channels`` to ``_SHARP`` times what a norm over the head makes of them.

        Args:
            spread: width of a head over the number of its channels that are not 0, cosine and sine counted as one.
            size: of those channels before a norm, as the weights stand.
        """
        if hasattr(self.attention, "q_norm"):
            for norm in (self.attention.q_norm, self.attention.k_norm):
                norm.weight[channels] = _SHARP
            return
        for row in (*(self.query(head) for head in heads), *(self.key(group) for group in groups)):
            row[channels] *= _SHARP * spread**0.5 / size

    def _rows(self, weight: Tensor, place: int) -> Tensor:
        return weight[place * self.width : (place + 1) * self.width]
