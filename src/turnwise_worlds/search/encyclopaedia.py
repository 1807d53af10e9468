"""The pages and questions of ``env=search`` and ``env=browse``: a generated encyclopaedia."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product, zip_longest
from pathlib import Path
from typing import Any

from turnwise.env import Level
from turnwise.files import read_yaml
from turnwise_worlds.data_files import cleaned

Fact = tuple[str, str]
"""A fact as a pair: the title of the page that states the fact, and the sentence on this page that states the fact."""


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


class Pages:
    """Pages, which are found by number or by title. Texts are cleaned, and pages with equal titles are merged."""

    def __init__(self, pages: Iterable[Page]) -> None:
        by_title: dict[str, Page] = {}
        for page in pages:
            title = cleaned(page.title).strip()
            sentences = tuple(cleaned(sentence).strip() for sentence in page.sentences)
            known = by_title.get(title)
            if known is not None:
                sentences = known.sentences + tuple(s for s in sentences if s not in known.sentences)
            by_title[title] = Page(title, sentences)
        if not by_title:
            raise ValueError("the files contain no page to search")
        self.pages: Sequence[Page] = tuple(by_title.values())
        self._named: Mapping[str, Page] = {page.title.casefold(): page for page in self.pages}

    def __iter__(self) -> Iterator[Page]:
        return iter(self.pages)

    def named(self, title: str) -> Page | None:
        return self._named.get(title.strip().casefold())


@dataclass(frozen=True, slots=True)
class Question:
    kind: str
    text: str
    answers: tuple[str, ...]
    # the facts that are needed for the answer, in the order in which they can be found; empty if they are not known
    evidence: tuple[Fact, ...] = ()

    @property
    def titles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(title for title, _ in self.evidence))

    @property
    def key(self) -> str:
        return hashlib.sha256("\n".join([self.text, *self.answers]).encode("utf-8", "surrogatepass")).hexdigest()[:12]

    def data(self) -> dict[str, Any]:
        evidence = [list(fact) for fact in self.evidence]
        return {"kind": self.kind, "question": self.text, "answers": list(self.answers), "evidence": evidence}

    @staticmethod
    def of(data: Mapping[str, Any]) -> Question:
        evidence = tuple((str(title), str(sentence)) for title, sentence in data["evidence"])
        return Question(str(data["kind"]), str(data["question"]), tuple(map(str, data["answers"])), evidence)


SCHEMAS = read_yaml(Path(__file__).with_name("schema.yaml"))
"""Level -> what the encyclopaedia of this level contains (schema.yaml explains the keys)."""
Schema = Mapping[str, Any]
_ONSETS = ("b", "br", "c", "d", "dr", "f", "g", "gr", "h", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS = ("", "l", "m", "n", "r", "s", "th", "nd", "rk")


class Names:
    """Draws names for things of a kind: pairs of words at the tiny level, else made-up ones. None is drawn twice."""

    def __init__(self, level: str, rng: random.Random) -> None:
        self._rng, self._parts = rng, SCHEMAS[level]["names"]
        self._used: set[str] = set()
        self._pairs: dict[str, list[str]] = {}
        for kind, halves in self._parts.items() if level == "tiny" else ():
            self._pairs[kind] = [" ".join(pair) for pair in product(*halves)]
            rng.shuffle(self._pairs[kind])

    def __call__(self, kind: str) -> str:
        if kind in self._pairs:
            if not self._pairs[kind]:
                raise ValueError(f"countries: the tiny level has no more names for a {kind}; set fewer countries")
            return self._pairs[kind].pop(0)
        while (name := " ".join(map(self._word, self._parts[kind]))) in self._used:
            pass
        self._used.add(name)
        return name

    def _word(self, part: int | str | list[str]) -> str:
        draw = self._rng.choice
        if isinstance(part, int):
            return "".join(draw(_ONSETS) + draw(_VOWELS) + draw(_CODAS) for _ in range(part)).capitalize()
        return part if isinstance(part, str) else draw(part)


_CHAINS = 6  # maximum number of questions that begin at the same thing and have the same number of hops
_UNSEEN = 5  # every fifth country is reserved for the split ``unseen``
_SEEN = 5  # about one in five questions on the other countries is reserved for the split ``seen``


@dataclass(frozen=True, slots=True)
class Thing:
    kind: str
    name: str
    relations: Mapping[str, Any]
    # name of a relation, such as ``mayor`` -> name of another thing, or a number
    facts: dict[str, str] = field(default_factory=dict)
    # name of a relation -> the sentence on this thing's page that states the fact
    sentences: dict[str, str] = field(default_factory=dict)

    def fact(self, relation: str) -> Fact:
        return self.name, self.sentences[relation]


Country = Mapping[str, Thing]


class Encyclopaedia:
    """A generated encyclopaedia with its questions. ``conf/env/search.yaml`` explains the arguments: a question of two hops
    is "Who is the mayor of the town where X was born?".
    """

    def __init__(
        self, level: Level = "full", edition: int = 0, countries: int | None = None, hops: Sequence[int] | None = None
    ) -> None:
        self.schema = SCHEMAS[level]
        count = self.schema["countries"] if countries is None else countries
        self.hops = tuple(self.schema["hops"] if hops is None else hops)
        if min(self.hops, default=0) < 1 or len(set(self.hops)) < len(self.hops):
            raise ValueError(f"hops: must be different numbers of at least 1, got {list(self.hops)}")
        rng = random.Random(f"encyclopaedia {level} {edition}")
        names = Names(level, rng)
        drawn = [_country(self.schema, names, rng) for _ in range(count)]
        self.countries: Sequence[Country] = [country for country, _ in drawn]
        self.pages = Pages(page for _, pages in drawn for page in pages)

    def questions(self, split: str, seed: int) -> list[Question]:
        """Returns all questions of a split, of different kinds in turn. The seed orders the questions of a kind."""
        by_kind: dict[str, list[Question]] = {}
        for number, country in enumerate(self.countries):
            if (number % _UNSEEN == 1) == (split == "unseen"):
                for question in self._questions(country):
                    held_out = int(hashlib.sha256(question.text.encode()).hexdigest(), 16) % _SEEN == 0
                    if split == "unseen" or held_out == (split == "seen"):
                        by_kind.setdefault(question.kind, []).append(question)
        rng = random.Random(f"questions {split} {seed}")
        for questions in by_kind.values():
            rng.shuffle(questions)
        return [question for turn in zip_longest(*by_kind.values()) for question in turn if question is not None]

    def _questions(self, country: Country) -> Iterator[Question]:
        for thing in country.values():
            for hops in self.hops:
                chains = list(_chains(country, thing, hops))
                rng = random.Random(f"{thing.name} {hops}")
                yield from rng.sample(chains, min(_CHAINS, len(chains)))
        for comparison in self.schema["comparisons"]:
            things = [thing for thing in country.values() if thing.kind == comparison["kind"]]
            for a, b in combinations(things, 2):
                yield from _compare(country, comparison, a, b)


def _country(schema: Schema, names: Names, rng: random.Random) -> tuple[Country, list[Page]]:
    made = [(names(kind), kind) for kind, count in schema["counts"].items() for _ in range(count)]
    country = {name: Thing(kind, name, schema["relations"].get(kind, {})) for name, kind in made}
    for thing in country.values():
        for name, relation in thing.relations.items():
            if isinstance(relation["target"], str):
                others = [other.name for other in country.values() if other.kind == relation["target"]]
                thing.facts[name] = rng.choice([other for other in others if other != thing.name])
            else:
                thing.facts[name] = str(rng.randint(*relation["target"]))
    return country, [_page(schema, thing, list(country), rng) for thing in country.values()]


def _page(schema: Schema, thing: Thing, all_names: list[str], rng: random.Random) -> Page:
    """Returns a thing's page: its definition, then facts and asides in random order. Fills ``thing.sentences`` too."""
    for name, value in thing.facts.items():
        thing.sentences[name] = rng.choice(thing.relations[name]["says"]).format(x=thing.name, y=value)
    others = [name for name in all_names if name not in (thing.name, *thing.facts.values())]
    asides = rng.sample(schema["asides"], schema["asides_per_page"])
    sentences = [*thing.sentences.values(), *(text.format(y=rng.choice(others)) for text in asides)]
    rng.shuffle(sentences)
    return Page(thing.name, (schema["defines"][thing.kind].format(x=thing.name), *sentences))


def _chains(country: Country, start: Thing, hops: int) -> Iterator[Question]:
    """The questions that follow ``hops`` relations from ``start`` and pass no thing twice."""
    paths: list[tuple[Thing, str, tuple[Fact, ...], frozenset[str]]] = [
        (start, start.name, (), frozenset({start.name}))
    ]
    for _ in range(hops - 1):
        paths = [
            (follower, relation["of"].format(x=described), (*evidence, thing.fact(name)), passed | {follower.name})
            for thing, described, evidence, passed in paths
            for name, relation in thing.relations.items()
            if (follower := country.get(thing.facts[name])) is not None and follower.name not in passed
        ]
    for thing, described, evidence, passed in paths:
        for name, relation in thing.relations.items():
            answer = thing.facts[name]
            if answer not in passed:
                facts = (*evidence, thing.fact(name))
                yield Question(f"chain{hops}", relation["asks"].format(x=described), (answer,), facts)


def _compare(country: Country, comparison: Mapping[str, Any], a: Thing, b: Thing) -> Iterator[Question]:
    via, numbers, evidence = comparison.get("via"), [], []
    for thing in (a, b):
        if via is not None:
            evidence.append(thing.fact(via))
            thing = country[thing.facts[via]]
        evidence.append(thing.fact(comparison["number"]))
        numbers.append(int(thing.facts[comparison["number"]]))
    if numbers[0] != numbers[1]:
        answer = a if (numbers[0] < numbers[1]) == comparison.get("least", False) else b
        kind = "comparison" if via is None else "composition"
        yield Question(kind, comparison["asks"].format(a=a.name, b=b.name), (answer.name,), tuple(evidence))
