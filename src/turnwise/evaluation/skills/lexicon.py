"""Defines the English words of the toy skills, and two invented languages with a translation of each word."""

from __future__ import annotations

from itertools import product

KINDS: dict[str, tuple[str, ...]] = {
    "animal": ("dog", "cat", "horse", "bird", "fish", "cow", "sheep", "mouse"),
    "fruit": ("pear", "plum", "grape", "lemon", "peach", "melon", "cherry", "fig"),
    "colour": ("red", "blue", "green", "white", "black", "yellow", "brown", "pink"),
    "tool": ("hammer", "saw", "drill", "rake", "axe", "shovel", "wrench", "broom"),
    "metal": ("iron", "gold", "silver", "copper", "tin", "lead", "zinc", "steel"),
    "vehicle": ("car", "bus", "train", "boat", "plane", "bike", "truck", "ship"),
}
OPPOSITES: tuple[tuple[str, str], ...] = (
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("old", "new"),
    ("long", "short"),
    ("high", "low"),
    ("hard", "soft"),
    ("wet", "dry"),
)
OPPOSITE = {**dict(OPPOSITES), **{b: a for a, b in OPPOSITES}}
NOUNS = KINDS["animal"] + KINDS["tool"][:4] + KINDS["vehicle"][:4]
ADJECTIVES = (*KINDS["colour"][:4], "big", "small", "old", "new")
VERBS = ("sees", "likes", "finds", "moves", "wants", "follows")
WORDS = tuple(word for words in KINDS.values() for word in words)

_GLOSSED = (*WORDS, *OPPOSITE, *VERBS, *KINDS, "the", "a", "which", "is", "opposite", "of", "largest", "smallest")


def _coin(onsets: str, vowels: str, coda: str) -> dict[str, str]:
    syllables = ["".join(pair) for pair in product(onsets, vowels)]
    step = len(syllables) + 1  # neighbours in the list differ in both syllables
    total = len(syllables) ** 2
    assert len(_GLOSSED) < total
    codes = [(7 + 3 * step * i) % total for i in range(len(_GLOSSED))]
    words = [syllables[c // len(syllables)] + syllables[c % len(syllables)] + coda for c in codes]
    if len(set(words)) != len(words):
        raise AssertionError("two English words share an invented one")
    return dict(zip(_GLOSSED, words, strict=True))


TOVAN = _coin("tvkzdg", "aoe", "n")
MERU = _coin("mrlshw", "uie", "")
