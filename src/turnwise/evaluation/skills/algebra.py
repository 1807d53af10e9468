"""A toy skill in place of MATH500: solve a linear equation in one unknown."""

from __future__ import annotations

from random import Random

from turnwise.evaluation.skills.skill import Item, Skill, exact


def draw(rng: Random) -> Item:
    """Draws an equation a x = c, x + b = c, x - b = c, b - x = c or a x + b = c with a solution in 1..9."""
    name, x = rng.choice("xynmk"), rng.randint(1, 9)
    a, b = rng.randint(2, 4), rng.randint(1, 9)
    left, right = rng.choice(
        (
            (f"{name} + {b}", x + b),
            (f"{b} + {name}", b + x),
            (f"{name} - {b}", x - b),
            (f"{x + b} - {name}", b),
            (f"{a} {name}", a * x),
            (f"{a} {name} + {b}", a * x + b),
        )
    )
    if right < 0:
        left, right = f"{name} + {b}", x + b
    return Item("algebra", f"Solve {left} = {right}.", f"{name} = {x}", key=f"{left.replace(name, 'x')} = {right}")


SKILL = Skill("algebra", "MATH500", draw, exact)
