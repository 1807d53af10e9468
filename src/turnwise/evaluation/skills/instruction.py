"""A toy skill in place of IFBench: follow an instruction, with an answer of exactly the requested form."""

from __future__ import annotations

from random import Random

from turnwise.evaluation.skills.lexicon import KINDS, WORDS
from turnwise.evaluation.skills.skill import Item, Skill, exact

_PLACES = ("first", "second", "third")


def draw(rng: Random) -> Item:
    """Draws an instruction: repeat a word, reverse words, pick a word, put a word in brackets, or name things of one
    kind but not a certain thing.
    """
    task = rng.choice(("repeat", "reverse", "pick", "bracket", "name"))
    if task == "repeat":
        word, times = rng.choice(WORDS), rng.randint(2, 4)
        return Item("instruction", f"Say {word} {times} times.", " ".join([word] * times))
    if task == "bracket":
        first, second = rng.sample(WORDS, 2)
        return Item("instruction", f"Say {first} and then {second} in brackets.", f"{first} [ {second} ]")
    if task == "name":
        kind, count = rng.choice(list(KINDS)), rng.randint(1, 3)
        barred, *chosen = rng.sample(KINDS[kind], count + 1)
        prompt = f"Name {count} of kind {kind}, but not {barred}."
        data = {"kind": kind, "count": count, "barred": barred}
        return Item("instruction", prompt, " ".join(chosen), data=data)
    words = rng.sample(WORDS, 3)
    if task == "reverse":
        return Item("instruction", f"Say in reverse order: {' '.join(words)}.", " ".join(reversed(words)))
    place = rng.randrange(3)
    return Item("instruction", f"Say the {_PLACES[place]} word of: {' '.join(words)}.", words[place])


def score(answer: str, item: Item) -> float:
    """Returns 1 if the answer meets every constraint, else 0. Naming tasks have many right answers; the other tasks
    have one.
    """
    if not item.data:
        return exact(answer, item)
    words = answer.split()
    allowed = set(KINDS[item.data["kind"]]) - {item.data["barred"]}
    return float(len(words) == item.data["count"] == len(set(words)) and allowed.issuperset(words))


SKILL = Skill("instruction", "IFBench", draw, score)
