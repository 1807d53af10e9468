"""Generates an encyclopaedia with pages and questions.

The encyclopaedia consists of countries. Each country contains things (such as persons, towns and rivers), facts that
relate these things to each other, a page for each thing, and questions about the things. No two countries share a name
or a fact. The split ``unseen`` has its own countries. The splits ``train`` and ``seen`` share countries, but no
question.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from turnwise.envs.environment import Level
from turnwise.envs.search.names import Names
from turnwise.envs.search.pages_and_questions import Fact, Page, Pages, Question
from turnwise.envs.search.schema import SCHEMAS, Comparison, Relation, Schema

_UNSEEN = 5  # every fifth country is reserved for the split ``unseen``
_SEEN = 5  # about one in five questions on the other countries is reserved for the split ``seen``


@dataclass(frozen=True, slots=True)
class Thing:
    """A thing, such as a person or a town."""

    kind: str
    name: str
    # name of a relation, such as ``mayor`` -> name of another thing, or a number
    facts: dict[str, str] = field(default_factory=dict)
    # name of a relation -> the sentence on this thing's page that states the fact
    sentences: dict[str, str] = field(default_factory=dict)

    def fact(self, relation: str) -> Fact:
        """Returns a pair: the title of this thing's page, and the sentence that states the fact of the relation."""
        return self.name, self.sentences[relation]


Country = Mapping[str, Thing]


class Encyclopaedia:
    """A generated encyclopaedia with its questions.

    Args:
        level: ``tiny`` (short sentences, few words) or ``full``.
        edition: seed of the encyclopaedia; each seed gives another encyclopaedia.
        countries: number of countries; None means the level's default.
        hops: numbers of relations that a question follows; each number gives one kind of question. For example, "Who is
            the mayor of the town where X was born?" follows two relations. None means the level's default (tiny: 1
            and 2, full: 2 and 3).

    Raises:
        ValueError: the level is unknown, the edition is negative, there are fewer than two countries, or a number of
            hops is below 1 or occurs twice.
    """

    def __init__(
        self, level: Level = "full", edition: int = 0, countries: int | None = None, hops: Sequence[int] | None = None
    ) -> None:
        if level not in SCHEMAS:
            raise ValueError(f"level must be one of {', '.join(SCHEMAS)}, got {level!r}")
        if edition < 0:
            raise ValueError(f"edition: must be at least 0, got {edition}")
        self.schema = SCHEMAS[level]
        count = self.schema.countries if countries is None else countries
        if count < 2:
            raise ValueError(f"countries: must be at least 2, because one is held out, got {count}")
        self.hops = self.schema.hops if hops is None else tuple(hops)
        if min(self.hops, default=0) < 1 or len(set(self.hops)) < len(self.hops):
            raise ValueError(f"hops: must be different numbers of at least 1, got {list(self.hops)}")
        rng = random.Random(f"encyclopaedia {level} {edition}")
        names = Names(level, rng)
        drawn = [_country(self.schema, names, rng) for _ in range(count)]
        self.countries: Sequence[Country] = [country for country, _ in drawn]
        self.pages = Pages(page for _, pages in drawn for page in pages)

    def questions(self, split: str, seed: int) -> list[Question]:
        """Returns all questions of a split. Questions of different kinds alternate in the list.

        ``seed`` decides the order of the questions of one kind.
        """
        by_kind: dict[str, list[Question]] = {}
        for number, country in enumerate(self.countries):
            if (number % _UNSEEN == 1) == (split == "unseen"):
                for question in _questions(self.schema, self.hops, country):
                    if split == "unseen" or _kept(question) == (split == "seen"):
                        by_kind.setdefault(question.kind, []).append(question)
        rng = random.Random(f"questions {split} {seed}")
        for questions in by_kind.values():
            rng.shuffle(questions)
        return _in_turn(list(by_kind.values()))


def _kept(question: Question) -> bool:
    return int(hashlib.sha256(question.text.encode()).hexdigest(), 16) % _SEEN == 0


def _in_turn(lists: list[list[Question]]) -> list[Question]:
    """Merges lists: takes the first question of every list, then the second question of every list, and so on."""
    longest = max(map(len, lists), default=0)
    return [questions[i] for i in range(longest) for questions in lists if i < len(questions)]


def _country(schema: Schema, names: Names, rng: random.Random) -> tuple[Country, list[Page]]:
    country = {(name := names(kind)): Thing(kind, name) for kind, count in schema.counts.items() for _ in range(count)}
    by_kind: dict[str, list[Thing]] = {}
    for thing in country.values():
        by_kind.setdefault(thing.kind, []).append(thing)
    for thing in country.values():
        for name, relation in schema.relations.get(thing.kind, {}).items():
            if isinstance(relation.target, str):
                others = [other.name for other in by_kind[relation.target] if other is not thing]
                thing.facts[name] = rng.choice(others)
            else:
                thing.facts[name] = str(rng.randint(*relation.target))
    return country, [_page(schema, thing, list(country), rng) for thing in country.values()]


def _page(schema: Schema, thing: Thing, all_names: list[str], rng: random.Random) -> Page:
    """Returns the page of a thing: its definition, then facts and asides in random order.

    An aside is a sentence without useful facts that mentions another thing of the country. The function also fills
    ``thing.sentences``.
    """
    relations = schema.relations.get(thing.kind, {})
    for name, value in thing.facts.items():
        thing.sentences[name] = rng.choice(relations[name].says).format(x=thing.name, y=value)
    said = list(thing.sentences.values())
    told = {thing.name, *thing.facts.values()}
    others = [name for name in all_names if name not in told]
    asides = rng.sample(list(schema.asides), schema.asides_per_page)
    said += [text.format(y=rng.choice(others)) for text in asides]
    rng.shuffle(said)
    return Page(thing.name, (schema.defines[thing.kind].format(x=thing.name), *said))


def _questions(schema: Schema, numbers: Sequence[int], country: Country) -> Iterator[Question]:
    for thing in country.values():
        for hops in numbers:
            chains = list(_chains(schema, country, thing, hops))
            rng = random.Random(f"{thing.name} {hops}")
            yield from rng.sample(chains, min(schema.chains, len(chains)))
    for comparison in schema.comparisons:
        things = [thing for thing in country.values() if thing.kind == comparison.kind]
        for a, b in combinations(things, 2):
            question = _compare(country, comparison, a, b)
            if question is not None:
                yield question


def _chains(schema: Schema, country: Country, start: Thing, hops: int) -> Iterator[Question]:
    """Yields all questions that begin at the thing ``start`` and follow ``hops`` relations.

    No question visits a thing twice, and none contains its own answer.
    """
    paths: list[tuple[Thing, str, tuple[Fact, ...], frozenset[str]]] = [
        (start, start.name, (), frozenset({start.name}))
    ]
    for _ in range(hops - 1):
        grown = []
        for thing, described, evidence, passed in paths:
            for name, relation in _relations(schema, thing):
                follower = country.get(thing.facts[name])
                if follower is not None and follower.name not in passed:
                    step = (*evidence, thing.fact(name))
                    grown.append((follower, relation.of.format(x=described), step, passed | {follower.name}))
        paths = grown
    for thing, described, evidence, passed in paths:
        for name, relation in _relations(schema, thing):
            answer = thing.facts[name]
            if answer not in passed:
                facts = (*evidence, thing.fact(name))
                yield Question(f"chain{hops}", relation.asks.format(x=described), (answer,), facts)


def _relations(schema: Schema, thing: Thing) -> Iterator[tuple[str, Relation]]:
    yield from schema.relations.get(thing.kind, {}).items()


def _compare(country: Country, comparison: Comparison, a: Thing, b: Thing) -> Question | None:
    """Returns a question that compares two things by a number; None if the two numbers are equal."""
    numbers, evidence = [], []
    for thing in (a, b):
        if comparison.via is not None:
            evidence.append(thing.fact(comparison.via))
            thing = country[thing.facts[comparison.via]]
        evidence.append(thing.fact(comparison.number))
        numbers.append(int(thing.facts[comparison.number]))
    if numbers[0] == numbers[1]:
        return None
    answer = a if (numbers[0] < numbers[1]) == comparison.least else b
    kind = "comparison" if comparison.via is None else "composition"
    return Question(kind, comparison.asks.format(a=a.name, b=b.name), (answer.name,), tuple(evidence))
