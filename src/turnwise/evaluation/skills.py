"""Eight toy skills that measure what a policy forgets during training, one for each out-of-domain benchmark of PivotRL
(arXiv:2603.21383): seeded generators of items with disjoint splits, and scorers.

The skills are made for tiny models. A score on a skill is not a score on the benchmark. Two skills translate between
English words and two invented languages.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product
from random import Random
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

Split = Literal["train", "test"]
_TEST_SHARE = 5  # one in five items is a test item


@dataclass(frozen=True, slots=True)
class SkillItem:
    """One question of a toy skill. The text ``key``, or the prompt if ``key`` is empty, decides whether the item is a
    training or a test item. ``data`` holds what the scorer needs in addition to the reference answer.
    """

    skill: str
    prompt: str
    reference: str
    key: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.prompt}]

    @property
    def split(self) -> Split:
        """An item is in the same split at every seed."""
        digest = hashlib.blake2b(f"{self.skill}\n{self.key or self.prompt}".encode(), digest_size=8).digest()
        return "test" if int.from_bytes(digest) % _TEST_SHARE == 0 else "train"


@dataclass(frozen=True, slots=True)
class Skill:
    """A toy skill. ``draw`` makes one random item of any split, and ``score`` grades an answer in [0, 1]."""

    name: str
    mirrors: str  # the benchmark in PivotRL's out-of-domain table that this skill replaces
    draw: Callable[[Random], SkillItem]
    score: Callable[[str, SkillItem], float]


def stream(skill: Skill, split: Split, seed: int) -> Iterator[SkillItem]:
    rng = Random(f"{skill.name}/{seed}")
    while True:
        item = skill.draw(rng)
        if item.split == split:
            yield item


def items(skill: str, split: Split, count: int, seed: int = 0) -> list[SkillItem]:
    """Returns different items. The same arguments give the same items."""
    by_prompt: dict[str, SkillItem] = {}
    for item in islice(stream(SKILLS[skill], split, seed), 20 * count + 1000):
        if len(by_prompt) == count:
            break
        by_prompt.setdefault(item.prompt, item)
    if len(by_prompt) < count:
        raise ValueError(
            f"only {len(by_prompt)} different {split} items of {skill} were found; ask for fewer than {count}"
        )
    return list(by_prompt.values())


def exact(answer: str, item: SkillItem) -> float:
    return float(" ".join(answer.split()) == " ".join(item.reference.split()))


def by_words(answer: str, item: SkillItem) -> float:
    """1 - d / n: d is the word-level edit distance to the reference, n the number of words of the longer text."""
    return float(Levenshtein.normalized_similarity(answer.split(), item.reference.split()))


# -- words -------------------------------------------------------------------------------------------------------------


KINDS = {
    "animal": ("dog", "cat", "horse", "bird", "fish", "cow", "sheep", "mouse"),
    "fruit": ("pear", "plum", "grape", "lemon", "peach", "melon", "cherry", "fig"),
    "colour": ("red", "blue", "green", "white", "black", "yellow", "brown", "pink"),
    "tool": ("hammer", "saw", "drill", "rake", "axe", "shovel", "wrench", "broom"),
    "metal": ("iron", "gold", "silver", "copper", "tin", "lead", "zinc", "steel"),
    "vehicle": ("car", "bus", "train", "boat", "plane", "bike", "truck", "ship"),
}
_FIRST = ["hot", "big", "fast", "old", "long", "high", "hard", "wet"]
_SECOND = ["cold", "small", "slow", "new", "short", "low", "soft", "dry"]
OPPOSITE = dict(zip(_FIRST + _SECOND, _SECOND + _FIRST, strict=True))
NOUNS = KINDS["animal"] + KINDS["tool"][:4] + KINDS["vehicle"][:4]
ADJECTIVES = (*KINDS["colour"][:4], "big", "small", "old", "new")
VERBS = ("sees", "likes", "finds", "moves", "wants", "follows")
WORDS = tuple(word for words in KINDS.values() for word in words)

_GLOSSED = (*WORDS, *OPPOSITE, *VERBS, *KINDS, "the", "a", "which", "is", "opposite", "of", "largest", "smallest")


def _coin(onsets: str, vowels: str, coda: str) -> dict[str, str]:
    """A word of two syllables for each English word of ``_GLOSSED``; no two share one."""
    syllables = ["".join(pair) for pair in product(onsets, vowels)]
    step = len(syllables) + 1  # neighbours in the list differ in both syllables
    codes = [(7 + 3 * step * i) % len(syllables) ** 2 for i in range(len(_GLOSSED))]
    words = [syllables[c // len(syllables)] + syllables[c % len(syllables)] + coda for c in codes]
    return dict(zip(_GLOSSED, words, strict=True))


TOVAN = _coin("tvkzdg", "aoe", "n")
MERU = _coin("mrlshw", "uie", "")


# -- the skills --------------------------------------------------------------------------------------------------------


_PLACES = ("first", "second", "third")
_LIMIT = 20  # greatest intermediate result of the skill arithmetic
_LETTERS = "ABCD"
# each law as (product, first factor, second factor); each of these three quantities is a pair (name, unit)
_FORMULAS = (
    (("force", "N"), ("mass", "kg"), ("acceleration", "m/s2")),
    (("distance", "m"), ("speed", "m/s"), ("time", "s")),
    (("voltage", "V"), ("current", "A"), ("resistance", "ohm")),
    (("energy", "J"), ("power", "W"), ("duration", "s")),
    (("pressure", "Pa"), ("density", "kg/m3"), ("potential", "m2/s2")),
)


def instruction(rng: Random) -> SkillItem:
    task = rng.choice(("repeat", "reverse", "pick", "bracket", "name"))
    if task == "repeat":
        word, times = rng.choice(WORDS), rng.randint(2, 4)
        return SkillItem("instruction", f"Say {word} {times} times.", " ".join([word] * times))
    if task == "bracket":
        first, second = rng.sample(WORDS, 2)
        return SkillItem("instruction", f"Say {first} and then {second} in brackets.", f"{first} [ {second} ]")
    if task == "name":
        kind, count = rng.choice(list(KINDS)), rng.randint(1, 3)
        barred, *chosen = rng.sample(KINDS[kind], count + 1)
        prompt = f"Name {count} of kind {kind}, but not {barred}."
        data = {"kind": kind, "count": count, "barred": barred}
        return SkillItem("instruction", prompt, " ".join(chosen), data=data)
    words = rng.sample(WORDS, 3)
    if task == "reverse":
        return SkillItem("instruction", f"Say in reverse order: {' '.join(words)}.", " ".join(reversed(words)))
    place = rng.randrange(3)
    return SkillItem("instruction", f"Say the {_PLACES[place]} word of: {' '.join(words)}.", words[place])


def score_instruction(answer: str, item: SkillItem) -> float:
    """Naming tasks have many right answers; the other tasks have one."""
    if not item.data:
        return exact(answer, item)
    words = answer.split()
    allowed = set(KINDS[item.data["kind"]]) - {item.data["barred"]}
    return float(len(words) == item.data["count"] == len(set(words)) and allowed.issuperset(words))


def arithmetic(rng: Random) -> SkillItem:
    """A start value and three steps. The reference lists the intermediate results, all in 0..20, as its reasoning."""
    value = rng.randint(1, 9)
    parts = [f"Start with {value}"]
    working: list[int] = []
    while len(working) < 3:
        step, k = rng.choice(("add", "take", "double")), rng.randint(1, 9)
        after = {"add": value + k, "take": value - k, "double": 2 * value}[step]
        if 0 <= after <= _LIMIT:
            parts.append("double it" if step == "double" else f"{step} {k}")
            working.append(value := after)
    return SkillItem("arithmetic", ", ".join(parts) + ".", ", ".join(map(str, working)))


def score_arithmetic(answer: str, item: SkillItem) -> float:
    """The intermediate results are ignored."""
    numbers = re.findall(r"\d+", answer)
    return float(bool(numbers) and int(numbers[-1]) == int(item.reference.split()[-1]))


def algebra(rng: Random) -> SkillItem:
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
    return SkillItem("algebra", f"Solve {left} = {right}.", f"{name} = {x}", key=f"{left.replace(name, 'x')} = {right}")


def code(rng: Random) -> SkillItem:
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
    return SkillItem("code", f"What is printed?\n{program}", printed)


def science(rng: Random) -> SkillItem:
    product, first, second = rng.choice(_FORMULAS)
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    quantities = [(product, a * b), (first, a), (second, b)]
    (name, unit), answer = quantities.pop(rng.randrange(3))
    rng.shuffle(quantities)
    known = ", ".join(f"{n} {value} {u}" for (n, u), value in quantities)
    key = f"{name}: " + ", ".join(sorted(known.split(", ")))
    return SkillItem("science", f"Given {known}. What is the {name}?", f"{answer} {unit}", key=key)


def skill_question(rng: Random) -> tuple[str, str, str, list[str]]:
    """Returns a relation (such as ``opposite``), the word to which it applies (empty for ``largest`` and ``smallest``),
    the right option and three wrong ones.
    """
    relation = rng.choice(("kind", "opposite", "largest", "smallest"))
    if relation == "kind":
        kind, *others = rng.sample(list(KINDS), 4)
        return relation, kind, rng.choice(KINDS[kind]), [rng.choice(KINDS[k]) for k in others]
    if relation == "opposite":
        word = rng.choice(list(OPPOSITE))
        right = OPPOSITE[word]
        return relation, word, right, rng.sample([w for w in OPPOSITE if w not in (word, right)], 3)
    numbers = sorted(rng.sample(range(1, 31), 4), reverse=relation == "largest")
    return relation, "", str(numbers[0]), list(map(str, numbers[1:]))


def options(rng: Random, right: str, wrong: list[str]) -> tuple[str, str]:
    words = [right, *wrong]
    rng.shuffle(words)
    listed = " ".join(f"{letter} {word}" for letter, word in zip(_LETTERS, words, strict=True))
    return listed, _LETTERS[words.index(right)]


def choice(rng: Random) -> SkillItem:
    relation, argument, right, wrong = skill_question(rng)
    questions = {"kind": f"is of kind {argument}", "opposite": f"is the opposite of {argument}"}
    listed, letter = options(rng, right, wrong)
    key = f"{relation} {argument} {right} {sorted(wrong)}"  # the same options in another order are the same item
    return SkillItem("choice", f"Which {questions.get(relation, f'is the {relation}')}? {listed}", letter, key=key)


def choice_x(rng: Random) -> SkillItem:
    """A question of ``choice`` in the invented language Meru, in which "is" stands at the end of a question."""
    relation, argument, right, wrong = skill_question(rng)
    listed, letter = options(rng, MERU.get(right, right), [MERU.get(word, word) for word in wrong])
    head = {"kind": "", "opposite": f"{MERU['opposite']} {MERU['of']} "}.get(relation, MERU.get(relation, ""))
    prompt = f"{head}{MERU.get(argument, argument)}"
    key = f"{relation} {argument} {right} {sorted(wrong)}"
    return SkillItem("choice_x", f"{MERU['which']} {prompt} {MERU['is']}? {listed}", letter, key=key)


def translation(rng: Random) -> SkillItem:
    """In Tovan, the verb comes last and an adjective follows its noun; in Meru, the verb comes first and an adjective
    precedes its noun.
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
    return SkillItem("translation", f"Translate to {language}: {sentence}", " ".join(words), key=sentence)


SKILLS = {
    skill.name: skill
    for skill in (
        Skill("instruction", "IFBench", instruction, score_instruction),
        Skill("arithmetic", "AIME", arithmetic, score_arithmetic),
        Skill("algebra", "MATH500", algebra, exact),
        Skill("code", "LiveCodeBench", code, exact),
        Skill("science", "SciCode", science, exact),
        Skill("choice", "MMLU-Pro", choice, exact),
        Skill("choice_x", "MMLU-ProX", choice_x, exact),
        Skill("translation", "WMT24++", translation, by_words),
    )
}
