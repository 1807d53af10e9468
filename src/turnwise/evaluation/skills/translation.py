"""A toy skill in place of WMT24++: translate an English sentence to an invented language. Answers are scored by word
edit distance.
"""

from __future__ import annotations

from random import Random

from turnwise.evaluation.skills.lexicon import ADJECTIVES, MERU, NOUNS, TOVAN, VERBS
from turnwise.evaluation.skills.skill import Item, Skill, by_words


def draw(rng: Random) -> Item:
    """Draws a sentence to translate to one of two invented languages. In Tovan, the verb comes last and an adjective
    follows its noun. In Meru, the verb comes first and an adjective precedes its noun.
    """
    subject, target = rng.sample(NOUNS, 2)
    verb = rng.choice(VERBS)
    first, second = (rng.choice(ADJECTIVES) for _ in range(2))
    if rng.random() < 0.5:
        language = "Tovan"
        words = [TOVAN[w] for w in (subject, first, target, second, verb)]
    else:
        language = "Meru"
        words = [MERU[w] for w in (verb, first, subject, second, target)]
    sentence = f"the {first} {subject} {verb} the {second} {target}"
    return Item("translation", f"Translate to {language}: {sentence}", " ".join(words), key=sentence)


SKILL = Skill("translation", "WMT24++", draw, by_words)
