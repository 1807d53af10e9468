"""A toy skill in place of SciCode: choose the right formula (a product or a quotient), compute it and name the unit."""

from __future__ import annotations

from random import Random

from turnwise.evaluation.skills.skill import Item, Skill, exact

# each law as (product, first factor, second factor); each of these three quantities is a pair (name, unit)
_FORMULAS: tuple[tuple[tuple[str, str], tuple[str, str], tuple[str, str]], ...] = (
    (("force", "N"), ("mass", "kg"), ("acceleration", "m/s2")),
    (("distance", "m"), ("speed", "m/s"), ("time", "s")),
    (("voltage", "V"), ("current", "A"), ("resistance", "ohm")),
    (("energy", "J"), ("power", "W"), ("duration", "s")),
    (("pressure", "Pa"), ("density", "kg/m3"), ("potential", "m2/s2")),
)


def draw(rng: Random) -> Item:
    """Draws one of five physical laws, gives two of its three quantities and asks for the third. The two factors are in
    1..9.
    """
    product, first, second = rng.choice(_FORMULAS)
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    quantities = [(product, a * b), (first, a), (second, b)]
    (name, unit), answer = quantities.pop(rng.randrange(3))
    rng.shuffle(quantities)
    given = ", ".join(f"{n} {value} {u}" for (n, u), value in quantities)
    key = f"{name}: " + ", ".join(sorted(given.split(", ")))
    return Item("science", f"Given {given}. What is the {name}?", f"{answer} {unit}", key=key)


SKILL = Skill("science", "SciCode", draw, exact)
