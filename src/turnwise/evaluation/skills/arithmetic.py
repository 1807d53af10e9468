"""A toy skill in place of AIME: three arithmetic operations in a row. The reference answer lists the intermediate
results as its reasoning.
"""

from __future__ import annotations

import re
from random import Random

from turnwise.evaluation.skills.skill import Item, Skill

_LIMIT = 20


def draw(rng: Random) -> Item:
    """Draws a start value and three arithmetic steps. All intermediate results are in 0..20."""
    value = rng.randint(1, 9)
    parts = [f"Start with {value}"]
    working: list[int] = []
    while len(working) < 3:
        step, k = rng.choice(("add", "take", "double")), rng.randint(1, 9)
        after = {"add": value + k, "take": value - k, "double": 2 * value}[step]
        if 0 <= after <= _LIMIT:
            parts.append("double it" if step == "double" else f"{step} {k}")
            working.append(value := after)
    return Item("arithmetic", ", ".join(parts) + ".", ", ".join(map(str, working)))


def score(answer: str, item: Item) -> float:
    """Returns 1 if the last number of the answer is the final result, else 0. The intermediate results are ignored."""
    numbers = re.findall(r"\d+", answer)
    return float(bool(numbers) and int(numbers[-1]) == int(item.reference.split()[-1]))


SKILL = Skill("arithmetic", "AIME", draw, score)
