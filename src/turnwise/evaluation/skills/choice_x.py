"""A toy skill in place of MMLU-ProX: multiple-choice questions in an invented language."""

from __future__ import annotations

from random import Random

from turnwise.evaluation.skills.choice import options, question
from turnwise.evaluation.skills.lexicon import MERU
from turnwise.evaluation.skills.skill import Item, Skill, exact


def draw(rng: Random) -> Item:
    """Draws a question of the skill ``choice`` and translates every word to the invented language Meru, in which the
    verb "is" stands at the end of the question.
    """
    relation, argument, right, wrong = question(rng)
    listed, letter = options(rng, MERU.get(right, right), [MERU.get(word, word) for word in wrong])
    head = {"kind": "", "opposite": f"{MERU['opposite']} {MERU['of']} "}.get(relation, MERU.get(relation, ""))
    asked = f"{head}{MERU.get(argument, argument)}"
    key = f"{relation} {argument} {right} {sorted(wrong)}"
    return Item("choice_x", f"{MERU['which']} {asked} {MERU['is']}? {listed}", letter, key=key)


SKILL = Skill("choice_x", "MMLU-ProX", draw, exact)
