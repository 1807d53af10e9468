"""Lists all toy skills, and draws different items of one of them."""

from __future__ import annotations

from itertools import islice

from turnwise.evaluation.skills import (
    algebra,
    arithmetic,
    choice,
    choice_x,
    code,
    instruction,
    science,
    translation,
)
from turnwise.evaluation.skills.skill import Item, Skill, Split, stream

SKILLS: dict[str, Skill] = {
    module.SKILL.name: module.SKILL
    for module in (instruction, arithmetic, algebra, code, science, choice, choice_x, translation)
}


def items(skill: str, split: Split, count: int, seed: int = 0) -> list[Item]:
    """Returns ``count`` different items of a toy skill. The same arguments give the same items.

    Raises:
        ValueError: the skill or split is unknown, or too few different items were found.
    """
    if skill not in SKILLS:
        raise ValueError(f"unknown skill {skill!r}; the skills are {', '.join(SKILLS)}")
    found: dict[str, Item] = {}
    for item in islice(stream(SKILLS[skill], split, seed), 20 * count + 1000):
        if len(found) == count:
            break
        found.setdefault(item.prompt, item)
    if len(found) < count:
        raise ValueError(f"only {len(found)} different {split} items of {skill} were found; ask for fewer than {count}")
    return list(found.values())
