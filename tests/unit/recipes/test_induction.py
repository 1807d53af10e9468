"""First weights that copy before any training."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest
import torch
from scripts.recipes.tiny.corpus import encode
from scripts.recipes.tiny.model import make_model
from scripts.recipes.tiny.recipe import Recipe
from transformers import AutoTokenizer

from turnwise.models.shipped import tiny_path

RECIPE = Recipe(theta=1e6, induction=1)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(tiny_path())


@torch.no_grad()
def copied(model, tokenizer) -> float:
    """Share of tokens that follow a known one in a repeated line and come out first."""
    rng, right = Random(0), []
    for _ in range(20):
        line = " ".join(rng.sample(["lamp", "desk", "mug", "pen", "bed", "shelf", "book", "cup", "sink", "fridge"], 8))
        talk = [{"role": "user", "content": f"go to {line}"}, {"role": "assistant", "content": f"go to {line}"}]
        document = encode(talk, tokenizer, 0.0)
        answer = [i for i, weight in enumerate(document.weights) if weight][2:-1]
        found = model(torch.tensor([document.ids])).logits[0].argmax(-1).tolist()
        right += [found[i - 1] == document.ids[i] for i in answer]
    return sum(right) / len(right)


@pytest.mark.parametrize(
    ("shape", "least"),
    [
        ({}, 0.9),
        ({"family": "llama"}, 0.8),  # without a norm a token whose code is small asks softly
        ({"hidden": 144, "head": 36}, 0.9),
        ({"hidden": 128, "head": 32, "layers": 2}, 0.9),
    ],
)
def test_a_line_is_copied_before_any_training(tokenizer, shape, least):
    recipe = dataclasses.replace(RECIPE, **shape)
    assert copied(make_model(recipe, tokenizer), tokenizer) > least
    assert copied(make_model(dataclasses.replace(recipe, induction=0), tokenizer), tokenizer) < 0.1
