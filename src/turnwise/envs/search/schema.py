"""Defines what the generated encyclopaedia contains: kinds of things, their relations, and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation that each thing of some kind has to another thing or to a number; for example, a town has a mayor.

    In the texts, ``{x}`` stands for the thing, and ``{y}`` for the other thing or the number. ``target`` is the kind of
    the other thing, or the range of the whole number.
    """

    says: Sequence[str]  # sentences that state the relation; a page uses one of them
    of: str  # a description of the other thing, such as "the author of {x}"
    asks: str
    target: str | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question that compares two things of one kind by a number, for example two towns by the year.

    If ``via`` names a relation, such as the director of a film, the question compares the numbers of the things to
    which this relation leads.
    """

    kind: str
    number: str
    asks: str
    least: bool = False
    via: str | None = None


@dataclass(frozen=True, slots=True)
class Schema:
    """Defines what a generated encyclopaedia contains. The keys of the mappings are kinds of things.

    An aside is a sentence without useful facts that mentions another thing ``{y}`` of the country. Because of asides, a
    search for a name may find a page that only mentions the name.
    """

    counts: Mapping[str, int]  # number of things per country
    defines: Mapping[str, str]  # the first sentence of a page
    relations: Mapping[str, Mapping[str, Relation]]
    comparisons: Sequence[Comparison]
    asides: Sequence[str] = ()
    asides_per_page: int = 0
    countries: int = 24
    hops: tuple[int, ...] = (2, 3)
    # maximum number of questions that begin at the same thing and have the same number of hops; without this limit,
    # questions with many hops would outnumber all others
    chains: int = 6


TINY = Schema(
    counts={"town": 4, "person": 6, "book": 4, "firm": 3},
    defines={"town": "A town.", "person": "A person.", "book": "A book.", "firm": "A firm."},
    relations={
        "town": {
            "head": Relation(["Its head is {y}."], "the head of {x}", "Who is the head of {x}?", "person"),
            "year": Relation(["Its year is {y}."], "the year of {x}", "What is the year of {x}?", (10, 60)),
        },
        "person": {
            "home": Relation(["The home is {y}."], "the home of {x}", "What is the home of {x}?", "town"),
            "year": Relation(["The year is {y}."], "the year of {x}", "What is the year of {x}?", (10, 60)),
        },
        "book": {
            "author": Relation(["Its author is {y}."], "the author of {x}", "Who is the author of {x}?", "person")
        },
        "firm": {
            "owner": Relation(["Its owner is {y}."], "the owner of {x}", "Who is the owner of {x}?", "person"),
            "seat": Relation(["Its seat is {y}."], "the seat of {x}", "What is the seat of {x}?", "town"),
        },
    },
    comparisons=[
        Comparison("person", "year", "Who has the first year, {a} or {b}?", least=True),
        Comparison("town", "year", "Which town has the first year, {a} or {b}?", least=True),
    ],
    hops=(1, 2),
)

FULL = Schema(
    counts={"country": 1, "river": 3, "town": 8, "person": 14, "university": 3, "company": 4, "novel": 7, "film": 5},
    defines={
        "country": "{x} is a country.",
        "river": "The {x} is a river.",
        "town": "{x} is a town.",
        "person": "{x} is a public figure.",
        "university": "{x} is a university.",
        "company": "{x} is a company.",
        "novel": "{x} is a novel.",
        "film": "{x} is a feature film.",
    },
    relations={
        "country": {
            "capital": Relation(
                ["Its capital is {y}.", "Its parliament meets in the capital, {y}."],
                "the capital of {x}",
                "What is the capital of {x}?",
                "town",
            )
        },
        "river": {
            "source": Relation(
                ["It rises in the hills above {y}.", "Its source lies just outside {y}."],
                "the town near which {x} rises",
                "Near which town does {x} rise?",
                "town",
            ),
            "length": Relation(
                ["It is {y} kilometres long.", "From source to mouth it measures {y} kilometres."],
                "the length of {x}",
                "How many kilometres long is {x}?",
                (40, 990),
            ),
        },
        "town": {
            "country": Relation(
                ["It belongs to {y}.", "It is one of the older settlements of {y}."],
                "the country of {x}",
                "In which country is {x}?",
                "country",
            ),
            "river": Relation(
                ["It stands on the banks of the {y}.", "The {y} runs through its centre."],
                "the river on which {x} stands",
                "On which river does {x} stand?",
                "river",
            ),
            "mayor": Relation(
                ["Its mayor is {y}.", "The present mayor, {y}, was elected by a narrow margin."],
                "the mayor of {x}",
                "Who is the mayor of {x}?",
                "person",
            ),
            "founded": Relation(
                ["It was founded in {y}.", "The first charter dates from {y}."],
                "the year in which {x} was founded",
                "In which year was {x} founded?",
                (1020, 1890),
            ),
        },
        "person": {
            "birthplace": Relation(
                ["The family lived in {y}, where the child was born.", "The birth was entered in the books of {y}."],
                "the town where {x} was born",
                "In which town was {x} born?",
                "town",
            ),
            "born": Relation(
                ["The year of birth was {y}.", "Born in {y}, this was the third of five children."],
                "the year in which {x} was born",
                "In which year was {x} born?",
                (1880, 1995),
            ),
            "school": Relation(
                ["Student years were spent at {y}.", "A degree from {y} followed."],
                "the university where {x} studied",
                "At which university did {x} study?",
                "university",
            ),
            "teacher": Relation(
                ["The greatest influence was a teacher, {y}.", "Lessons with {y} decided the later career."],
                "the teacher of {x}",
                "Who was the teacher of {x}?",
                "person",
            ),
        },
        "university": {
            "seat": Relation(
                ["Its main campus is in {y}.", "All of its faculties are housed in {y}."],
                "the town where {x} has its campus",
                "In which town is the campus of {x}?",
                "town",
            ),
            "opened": Relation(
                ["It opened its doors in {y}.", "Teaching began in {y}."],
                "the year in which {x} opened",
                "In which year did {x} open?",
                (1400, 1970),
            ),
        },
        "company": {
            "founder": Relation(
                ["It was set up by {y}.", "The founder, {y}, led it for decades."],
                "the founder of {x}",
                "Who founded {x}?",
                "person",
            ),
            "seat": Relation(
                ["Its headquarters are in {y}.", "The head office has always stood in {y}."],
                "the town where {x} has its headquarters",
                "In which town are the headquarters of {x}?",
                "town",
            ),
        },
        "novel": {
            "author": Relation(
                ["It was written by {y}.", "Its author is {y}."], "the author of {x}", "Who wrote {x}?", "person"
            ),
            "setting": Relation(
                ["The story is set in {y}.", "Most of its chapters play in {y}."],
                "the town in which {x} is set",
                "In which town is {x} set?",
                "town",
            ),
            "published": Relation(
                ["It was first published in {y}.", "The first edition appeared in {y}."],
                "the year in which {x} was published",
                "In which year was {x} first published?",
                (1905, 2015),
            ),
        },
        "film": {
            "director": Relation(
                ["It was directed by {y}.", "Its director is {y}."],
                "the director of {x}",
                "Who directed {x}?",
                "person",
            ),
            "source": Relation(
                ["The script is based on {y}.", "It brings {y} to the screen."],
                "the novel on which {x} is based",
                "On which novel is {x} based?",
                "novel",
            ),
        },
    },
    comparisons=[
        Comparison("person", "born", "Who was born earlier, {a} or {b}?", least=True),
        Comparison("town", "founded", "Which town was founded earlier, {a} or {b}?", least=True),
        Comparison("river", "length", "Which river is longer, {a} or {b}?"),
        Comparison("university", "opened", "Which university opened later, {a} or {b}?"),
        Comparison("novel", "published", "Which novel was published first, {a} or {b}?", least=True),
        Comparison(
            "film", "born", "Which film has the director who was born earlier, {a} or {b}?", least=True, via="director"
        ),
        Comparison(
            "novel", "born", "Which novel has the author who was born later, {a} or {b}?", least=False, via="author"
        ),
        Comparison("company", "born", "Which company has the younger founder, {a} or {b}?", least=False, via="founder"),
    ],
    asides=[
        "A short biography of {y} mentions it in passing.",
        "A museum in the region keeps papers on it, next to others on {y}.",
        "Critics have often compared it with {y}.",
        "A radio programme once spent an hour on it and on {y}.",
        "School books tend to treat it together with {y}.",
        "An old postcard shows it beside {y}.",
    ],
    asides_per_page=2,
    countries=100,
    hops=(2, 3),
)

SCHEMAS: Mapping[str, Schema] = {"tiny": TINY, "full": FULL}
