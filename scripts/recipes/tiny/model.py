"""Builds the model with which a recipe starts: a small decoder of one of two families, whose weights may copy already.

A model of two million parameters would learn induction heads (C. Olsson et al., arXiv:2209.11895) by itself only after very
many steps, so they are set by hand and then trained. Heads of the lowest layer store for each token which token precedes
it. Heads of the next layer look for earlier positions of the current token and copy the token that followed there. High
rotary frequencies distinguish neighbouring positions; low rotary frequencies, which hardly rotate within a few hundred
tokens, serve the look-up by content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from scripts.recipes.tiny.settings import Recipe
from scripts.recipes.tiny.tokenizer import END_OF_TEXT, TURN_END
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

FAMILIES = {"qwen3": Qwen3Config, "llama": LlamaConfig}
"""Qwen3 normalises the queries and keys of each head, Llama does not."""


def make_model(recipe: Recipe, tokenizer: Any) -> Any:
    """Returns a causal language model with random weights. It has half as many heads for keys and values as for
    queries, and tied embeddings.
    """
    torch.manual_seed(recipe.seed)
    heads = recipe.hidden // recipe.head
    config = FAMILIES[recipe.family](
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=recipe.head,
        intermediate_size=recipe.mlp,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": recipe.theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(END_OF_TEXT),
        attn_implementation="sdpa",
    )
    model = AutoModelForCausalLM.from_config(config)
    if recipe.induction:
        install(model, tokenizer, recipe.seed)
    return model


# -- heads that copy -----------------------------------------------------------------------------------------------------

_SPREAD, _CONSTANT = 0.1, 0.3  # scale of a token's code; value of the first residual channel, the same for all tokens
_FORM = 5  # number of channels that distinguish a word with a blank before it from the same word without a blank
# pairs of channels of a head: the fastest, which distinguish neighbours; the slowest, which compare codes
_NEAR, _FAR = 4, 13
_SHARP = 2.45  # norm of queries and of keys: a score is at most its square times the root of the head's width
_COPIED = 3.0  # scale of a copied code relative to the current token's own code


@torch.no_grad()
def install(model: Any, tokenizer: Any, seed: int) -> None:
    """Sets the embeddings and two heads in each of the two lowest layers. All other weights are unchanged.

    The channels of the residual stream are: one constant, then the token's code, then the codes of the tokens one and
    two positions before it. ``model`` is a new Qwen3 or Llama with at least two layers, four heads and two key heads.
    ``seed`` is the random seed of the codes.
    """
    config = model.config
    width, half = config.head_dim, config.head_dim // 2
    code = torch.arange(1, 2 * width)  # channels of the code
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
        # a value is the code divided by the residual's scale
        heads.output(head)[place, torch.arange(len(place))] = scale
    heads.value(0)[torch.arange(width), code[:width]] = 1.0
    heads.sharpen((0, 1), (0,), torch.cat([near, near + half]), width / len(near), _CONSTANT / scale)

    second = model.model.layers[1].self_attn
    heads = _Heads(second, width)
    heads.clear((0, heads.count // 2), (0, 1))
    far = torch.arange(half - _FAR, half)
    compared = torch.cat([far, far + half])
    number = torch.arange(len(compared))
    scale = float(2**0.5 * scale)  # the layer below has added as much again
    for head, group, part in ((0, 0, code[:width]), (heads.count // 2, 1, code[width:])):
        heads.query(head)[compared, code[number]] = 1.0
        heads.key(group)[compared, before[number]] = 1.0
        heads.value(group)[torch.arange(len(part)), part] = 1.0
        heads.output(head)[part, torch.arange(len(part))] = _COPIED * scale
    heads.sharpen((0, heads.count // 2), (0, 1), compared, width / len(compared), _SPREAD / scale)


def codes(tokenizer: Any, channels: int, seed: int) -> Tensor:
    """Returns a random code for each token, (tokens, channels).

    A word with a blank before it and the same word without a blank differ only in the last ``_FORM`` channels.
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
    """The rows and columns of an attention layer's matrices by head. A group is a head of keys and values."""

    def __init__(self, attention: Any, width: int) -> None:
        self.attention, self.width = attention, width
        self.count = attention.q_proj.weight.shape[0] // width

    def clear(self, heads: Sequence[int], groups: Sequence[int]) -> None:
        """Sets all weights to zero with which these heads read and write."""
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
        """Scales queries and keys in ``channels`` to ``_SHARP`` times their value after a norm over the head.

        Args:
            spread: width of a head divided by the number of its channels that are not 0, where cosine and sine count as
                one.
            size: size of those channels before the norm, under the current weights.
        """
        if hasattr(self.attention, "q_norm"):
            for norm in (self.attention.q_norm, self.attention.k_norm):
                norm.weight[channels] = _SHARP
            return
        for row in (*(self.query(head) for head in heads), *(self.key(group) for group in groups)):
            row[channels] *= _SHARP * spread**0.5 / size

    def _rows(self, weight: Tensor, place: int) -> Tensor:
        return weight[place * self.width : (place + 1) * self.width]
