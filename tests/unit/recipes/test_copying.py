"""Copying drills: the answer is in the question, and nothing else has a weight."""

from __future__ import annotations

import re
from random import Random

import pytest
from scripts.recipes.tiny.copying import copy_documents, recalled, whole
from transformers import AutoTokenizer

from turnwise.models.shipped import tiny_path


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.mark.parametrize("seed", range(20))
def test_a_whole_line_comes_back_in_order(seed):
    asked, answer = whole(Random(seed), ["lamp", "desk"])
    assert words(asked) == words(answer) and 4 <= len(words(asked)) <= 10


@pytest.mark.parametrize("seed", range(20))
def test_pairs_come_back_in_the_order_of_their_first_words(seed):
    asked, answer = recalled(Random(seed), ["lamp", "desk", "sofa", "pen"])
    *_, order = asked.split("\n")
    told = words(asked.removesuffix(order))
    pairs = dict(zip(told[::2], told[1::2], strict=True))
    assert words(answer) == [word for key in order.split() for word in (key, pairs[key])]


def test_the_answer_alone_has_a_weight():
    tokenizer = AutoTokenizer.from_pretrained(tiny_path())
    for document in copy_documents(tokenizer, 5, 1, 0.5):
        assert set(document.weights) == {0.0, 0.5}
        answer = [i for i, w in zip(document.ids, document.weights, strict=True) if w]
        text = tokenizer.decode(document.ids)
        assert text.endswith(tokenizer.decode(answer) + "\n") and tokenizer.decode(answer).endswith("<|im_end|>")
    assert list(copy_documents(tokenizer, 5, 1, 0.5)) == list(copy_documents(tokenizer, 5, 1, 0.5))
