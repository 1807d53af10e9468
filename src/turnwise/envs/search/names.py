"""Draws names for the things in a generated encyclopaedia. Each name is used only once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

FIRST = ("Alma", "Bero", "Cira", "Dano", "Elke", "Fino", "Gita", "Hugo", "Ines", "Juri", "Kira", "Lano", "Mira", "Nilo")
LAST = ("Adler", "Bauer", "Cross", "Duran", "Evers", "Falk", "Grant", "Hale", "Irving", "Jonas", "Keller", "Lund")
PLACE = ("Ash", "Birch", "Clay", "Deer", "Elm", "Fox", "Glen", "Hay", "Iron", "Lake", "Moss", "Oak")
GROUND = ("Bay", "Cape", "Dale", "Field", "Ford", "Gate", "Hill", "Mill", "Port")
TRAIT = ("Amber", "Broken", "Cold", "Distant", "Empty", "Golden", "Hidden", "Last", "Quiet", "Second")
THING = ("Bridge", "Clock", "Door", "Garden", "Letter", "Mirror", "Orchard", "River", "Signal", "Winter")
TRADE = ("Works", "Motors", "Press", "Tools", "Mills", "Glass", "Steel", "Paper")

_ONSETS = ("b", "br", "c", "d", "dr", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS = ("", "l", "m", "n", "r", "s", "th", "nd", "rk")


class Names:
    """Draws a new name for a thing of a given kind, such as a person or a town.

    Args:
        level: ``tiny`` combines words from fixed lists, which have 75 words in all; ``full`` invents words.
        rng: random number generator that decides all names.
    """

    def __init__(self, level: str, rng: random.Random) -> None:
        self._rng = rng
        self._used: set[str] = set()
        self._kinds: dict[str, Iterator[str]] = {}
        if level == "tiny":
            pairs = {"person": (FIRST, LAST), "town": (PLACE, GROUND), "book": (TRAIT, THING), "firm": (PLACE, TRADE)}
            self._kinds = {kind: self._pairs(*words) for kind, words in pairs.items()}

    def __call__(self, kind: str) -> str:
        """Returns a new name for a thing of the given kind.

        Raises:
            ValueError: all names of this kind are used up.
        """
        if kind in self._kinds:
            pair = next(self._kinds[kind], None)
            if pair is None:
                raise ValueError(f"countries: the tiny level has no more names for a {kind}; set fewer countries")
            return pair
        while (name := self._made_up(kind)) in self._used:
            pass
        self._used.add(name)
        return name

    def _pairs(self, first: tuple[str, ...], second: tuple[str, ...]) -> Iterator[str]:
        pairs = [" ".join(pair) for pair in product(first, second)]
        self._rng.shuffle(pairs)
        return iter(pairs)

    def _word(self, syllables: int) -> str:
        draw = self._rng.choice
        return "".join(draw(_ONSETS) + draw(_VOWELS) + draw(_CODAS) for _ in range(syllables)).capitalize()

    def _made_up(self, kind: str) -> str:
        draw = self._rng.choice
        if kind == "person":
            return f"{self._word(2)} {self._word(2)}"
        if kind == "university":
            return f"{self._word(2)} {draw(('College', 'University', 'Institute'))}"
        if kind == "company":
            return f"{self._word(2)} {draw(TRADE)}"
        if kind in ("novel", "film"):
            return f"The {draw(TRAIT)} {draw(THING)} of {self._word(2)}"
        return self._word(3 if kind == "country" else 2)
