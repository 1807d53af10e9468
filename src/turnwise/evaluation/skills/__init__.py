"""Eight toy skills that training may make a policy forget, one for each out-of-domain benchmark of PivotRL
(arXiv:2603.21383).

These skills only measure forgetting of a tiny model. A score here is not a score on the mirrored benchmark.
"""

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
    """Returns ``count`` different items; the same arguments give the same items.

    Raises:
        ValueError: the skill or split is unknown, or the skill seems to have fewer items.
    """
    if skill not in SKILLS:
        raise ValueError(f"unknown skill {skill!r}; there are {', '.join(SKILLS)}")
    found: dict[str, Item] = {}
    for item in islice(stream(SKILLS[skill], split, seed), 20 * count + 1000):
        if len(found) == count:
            break
        found.setdefault(item.prompt, item)
    if len(found) < count:
        raise ValueError(f"skill {skill} gave only {len(found)} different {split} items, {count} asked for")
    return list(found.values())


__all__ = ["SKILLS", "Item", "Skill", "Split", "items", "stream"]
