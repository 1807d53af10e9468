"""A toy skill in place of LiveCodeBench: predict the output of a short Python program."""

from __future__ import annotations

from random import Random

from turnwise.evaluation.skills.skill import Item, Skill, exact


def draw(rng: Random) -> Item:
    """Draws a program of one to three lines over small numbers. Programs index a list, take its max, min or length,
    reverse it, print a range, branch, or add.
    """
    task = rng.choice(("index", "max", "min", "len", "last", "reverse", "range", "if", "sum"))
    values = rng.sample(range(10), rng.randint(2, 4))
    x, k = rng.randint(0, 9), rng.randint(1, 9)
    place = rng.randrange(len(values))
    listing = f"a = {values}\n"
    program, printed = {
        "index": (f"{listing}print( a[ {place} ] )", str(values[place])),
        "last": (f"{listing}print( a[ -1 ] )", str(values[-1])),
        "max": (f"{listing}print( max(a) )", str(max(values))),
        "min": (f"{listing}print( min(a) )", str(min(values))),
        "len": (f"{listing}print( len(a) )", str(len(values))),
        "reverse": (f"{listing}print( *reversed(a) )", " ".join(map(str, reversed(values)))),
        "range": (f"print( *range( {x}, {x + k % 4 + 1} ) )", " ".join(map(str, range(x, x + k % 4 + 1)))),
        "if": (f"a = {x}\nprint( 'yes' if a > {k} else 'no' )", "yes" if x > k else "no"),
        "sum": (f"a = {x}\nb = a + {k}\nprint( b )", str(x + k)),
    }[task]
    return Item("code", f"What is printed?\n{program}", printed)


SKILL = Skill("code", "LiveCodeBench", draw, exact)
