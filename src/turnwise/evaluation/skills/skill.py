"""Defines a toy skill: a seeded generator of items with disjoint splits, and a scorer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

Split = Literal["train", "test"]
_TEST_SHARE = 5  # one in five items is a test item


@dataclass(frozen=True, slots=True)
class Item:
    """One question of a toy skill. The text ``key``, or the prompt if ``key`` is empty, decides whether the item is a
    training or a test item. ``data`` holds what the scorer needs in addition to the reference answer.
    """

    skill: str
    prompt: str
    reference: str
    key: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    @property
    def split(self) -> Split:
        """Returns the item's split. The split depends only on the skill and the key (or the prompt), so an item is in
        the same split at every seed.
        """
        text = f"{self.skill}\n{self.key or self.prompt}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return "test" if int.from_bytes(digest) % _TEST_SHARE == 0 else "train"


@dataclass(frozen=True, slots=True)
class Skill:
    """A toy skill. ``draw`` makes one random item of any split, and ``score`` grades an answer in [0, 1]."""

    name: str
    mirrors: str  # the benchmark in PivotRL's out-of-domain table that this skill replaces
    draw: Callable[[Random], Item]
    score: Callable[[str, Item], float]


def stream(skill: Skill, split: Split, seed: int) -> Iterator[Item]:
    if split not in ("train", "test"):
        raise ValueError(f"split must be train or test, got {split!r}")
    rng = Random(f"{skill.name}/{seed}")
    while True:
        item = skill.draw(rng)
        if item.split == split:
            yield item


def exact(answer: str, item: Item) -> float:
    return float(" ".join(answer.split()) == " ".join(item.reference.split()))


def by_words(answer: str, item: Item) -> float:
    """Returns 1 - d / n, where d is the word-level edit distance between the answer and the reference and n the number
    of words of the longer text.
    """
    return float(Levenshtein.normalized_similarity(answer.split(), item.reference.split()))
