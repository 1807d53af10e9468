"""A toy skill in place of MMLU-Pro: multiple-choice questions with four options each, about a few words and numbers."""

from __future__ import annotations

from random import Random

from turnwise.evaluation.skills.lexicon import KINDS, OPPOSITE
from turnwise.evaluation.skills.skill import Item, Skill, exact

LETTERS = "ABCD"


def question(rng: Random) -> tuple[str, str, str, list[str]]:
    """Draws a question in English. Returns its relation (such as ``opposite``), the word to which the relation applies,
    the right option and three wrong options. The word is empty for the relations ``largest`` and ``smallest``.
    """
    relation = rng.choice(("kind", "opposite", "largest", "smallest"))
    if relation == "kind":
        kind, *others = rng.sample(list(KINDS), 4)
        return relation, kind, rng.choice(KINDS[kind]), [rng.choice(KINDS[k]) for k in others]
    if relation == "opposite":
        word = rng.choice(list(OPPOSITE))
        right = OPPOSITE[word]
        return relation, word, right, rng.sample([w for w in OPPOSITE if w not in (word, right)], 3)
    numbers = sorted(rng.sample(range(1, 31), 4), reverse=relation == "largest")
    return relation, "", str(numbers[0]), list(map(str, numbers[1:]))


def options(rng: Random, right: str, wrong: list[str]) -> tuple[str, str]:
    """Returns the options in random order, each after its letter, as one text, and the letter of the right option."""
    words = [right, *wrong]
    rng.shuffle(words)
    listed = " ".join(f"{letter} {word}" for letter, word in zip(LETTERS, words, strict=True))
    return listed, LETTERS[words.index(right)]


def draw(rng: Random) -> Item:
    relation, argument, right, wrong = question(rng)
    asked = {"kind": f"is of kind {argument}", "opposite": f"is the opposite of {argument}"}
    listed, letter = options(rng, right, wrong)
    key = f"{relation} {argument} {right} {sorted(wrong)}"  # the same options in another order are the same item
    return Item("choice", f"Which {asked.get(relation, f'is the {relation}')}? {listed}", letter, key=key)


SKILL = Skill("choice", "MMLU-Pro", draw, exact)
