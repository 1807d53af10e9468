"""Creates made-up names for the tasks of the dialogues, because a name that a base has never seen can only be copied.

With the few names that training tasks share, a base memorises names instead of copying them, and fails on held-out
names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random

from turnwise_worlds.apibank.office import HELD_OUT
from turnwise_worlds.bfcl import requests
from turnwise_worlds.bfcl.requests import Names

_ONSETS = ("b", "br", "c", "ch", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "sh", "st", "t", "w", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oo", "y")
_CODAS = ("", "d", "g", "ll", "m", "n", "r", "rd", "s", "t", "x", "te")


def word(rng: Random) -> str:
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((1, 1, 2))))


def words(rng: Random, count: int, taken: Collection[str]) -> tuple[str, ...]:
    """Returns different words, none of which is in ``taken``."""
    return drawn(lambda: word(rng), count, taken)


def drawn(draw: Callable[[], str], count: int, taken: Collection[str]) -> tuple[str, ...]:
    """Returns ``count`` different draws, none of which is in ``taken``."""
    found: dict[str, None] = {}
    while len(found) < count:
        if (name := draw()) not in taken:
            found[name] = None
    return tuple(found)


def simulated(rng: Random) -> Names:
    """Returns names for the simulated APIs, without held-out names."""
    held = requests.HELD_OUT
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return Names(
        folders=words(rng, 4, held.folders),
        files=drawn(lambda: f"{word(rng)}.txt", 4, held.files),
        words=words(rng, 4, held.words),
        titles=words(rng, 4, held.titles),
        stocks=drawn(lambda: 3 * rng.choice(letters), 4, held.stocks),
        people=drawn(lambda: word(rng).capitalize(), 4, held.people),
    )


def office(rng: Random) -> dict[str, tuple[str, ...]]:
    """Returns names for the office, without held-out names."""
    kinds: dict[str, tuple[Callable[[], str], int]] = {
        **dict.fromkeys(("person", "topic", "word", "city", "symptom"), (lambda: word(rng), 4)),
        "time": (lambda: f"{rng.randrange(5, 22)}:{rng.choice(('00', '15', '30', '45'))}", 4),
        "content": (lambda: f"{word(rng)} {word(rng)}", 4),
        "room": (lambda: f"r{rng.randrange(1, 20)}", 4),
        "stock": (lambda: 3 * rng.choice("abcdefghijklmnopqrstuvwxyz"), 4),
        "doctor": (lambda: f"dr {word(rng)}", 3),
        "date": (lambda: f"{rng.choice(('may', 'june', 'july'))} {rng.randrange(1, 29):02d}", 4),
    }
    return {kind: drawn(draw, count, HELD_OUT[kind]) for kind, (draw, count) in kinds.items()}
