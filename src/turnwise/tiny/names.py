"""Made-up names for the dialogues' tasks: who has never met a name can only copy it.

With the few names that training tasks share a base learns those names, and not to copy; it then fails on held-out ones.
"""

from __future__ import annotations

from random import Random

from turnwise.envs.bfcl.requests import Names

_ONSETS = ("b", "br", "c", "ch", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "sh", "st", "t", "w", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oo", "y")
_CODAS = ("", "d", "g", "ll", "m", "n", "r", "rd", "s", "t", "x", "te")


def word(rng: Random) -> str:
    """One or two syllables."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((1, 1, 2))))


def words(rng: Random, count: int) -> tuple[str, ...]:
    """Different ones."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[word(rng)] = None
    return tuple(found)


def simulated(rng: Random) -> Names:
    """For the simulated APIs."""
    return Names(
        folders=words(rng, 4),
        files=tuple(f"{name}.txt" for name in words(rng, 4)),
        words=words(rng, 4),
        titles=words(rng, 4),
        stocks=tuple(3 * letter.upper() for letter in rng.sample("abcdefghijklmnopqrstuvwxyz", 4)),
        people=tuple(name.capitalize() for name in words(rng, 4)),
    )


def office(rng: Random) -> dict[str, tuple[str, ...]]:
    """For the office."""
    plain = {kind: words(rng, 4) for kind in ("person", "topic", "word", "city", "symptom")}
    return plain | {
        "time": tuple(f"{hour}:{rng.choice(('00', '15', '30', '45'))}" for hour in rng.sample(range(5, 22), 4)),
        "content": tuple(" ".join(words(rng, 2)) for _ in range(4)),
        "room": tuple(f"r{number}" for number in rng.sample(range(1, 10), 4)),
        "stock": tuple(3 * letter for letter in rng.sample("abcdefghijklmnopqrstuvwxyz", 4)),
        "doctor": tuple(f"dr {name}" for name in words(rng, 3)),
        "date": tuple(f"{rng.choice(('may', 'june', 'july'))} {day:02d}" for day in rng.sample(range(1, 29), 4)),
    }
