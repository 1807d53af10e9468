"""Defines what each tiny base is trained on, so that the recipe stays independent of any environment.

For the worlds of tools, at their tiny levels, a good expert is imitated first. Then a clumsy expert is imitated, which
makes many mistakes and has enough turns to correct them. The environment's verifier of single turns refuses every mistake,
so that a base with these mistakes has room to improve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any, Protocol

from scripts.recipes.tiny.documents import (
    Document,
    copy_documents,
    encode,
    office_names,
    reading_documents,
    simulated_names,
)
from scripts.recipes.tiny.settings import Recipe

from turnwise.env import Environment, Quality, demonstrated
from turnwise.types import Message
from turnwise_worlds import apibank, bfcl, math, search, software, terminal
from turnwise_worlds.apibank.office import OfficeTasks
from turnwise_worlds.bfcl.generated_tasks import TinyTasks
from turnwise_worlds.household import HouseholdEnv, Mistakes


class Mixture(Protocol):
    """The documents of one base. A mixture must be picklable, because it is sent to processes that draw documents.

    Attributes:
        max_tokens: greatest number of tokens of a reply.
        about, stretches: texts of the model card on the data and on the stretches of the training.
    """

    name: str
    recipe: Recipe
    worlds: tuple[str, ...]
    max_tokens: int
    about: str
    stretches: str

    def texts(self, seed: int) -> Iterable[str]:
        """Returns the texts from which the tokenizer's vocabulary is counted, in addition to toy skills."""
        ...

    def demonstrations(self, tokenizer: Any, count: int, seed: int, errant: bool, other: float) -> Iterator[Document]:
        """Returns ``count`` demonstrations of training tasks. The same arguments give the same documents.

        Args:
            errant: whether the expert is that of the last stretch, which makes far more mistakes.
            other: loss weight of tokens that the assistant does not write.
        """
        ...

    def drills(self, tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
        """Returns ``count`` drills of skills that are rare in demonstrations, whose choices have loss weight ``weight``."""
        ...


# This expert often sees the object of its task and walks away, so that nearly every mistake can be detected from a
# single turn.
ERRANT = Mistakes(revisit=0.1, idle=0.1, leave=0.35, wrong=0.08, premature=0.05, inadmissible=0.05)


@dataclass
class Household:
    """A clumsy expert of the household, and drills in reading lists."""

    env: HouseholdEnv = field(default_factory=HouseholdEnv)
    recipe: Recipe = field(default_factory=Recipe)
    name: str = "tiny"
    worlds: tuple[str, ...] = ("household",)
    max_tokens: int = 24
    about: str = "clumsy demonstrations of the household world, drills in reading its lists"
    stretches: str = (
        "Three stretches (`scripts/recipes/tiny/settings.py`): imitation of the clumsy expert with the skills among it; drills\n"
        "in reading lists; imitation of an expert that errs more and above all walks away. Demonstrations and drills come from\n"
        "the train split alone, skills from their train items alone."
    )

    def texts(self, seed: int) -> Iterable[str]:
        for task in self.env.tasks("train", 600, seed=seed):
            yield from (m["content"] for m in self.env.demonstrate(task, quality="clumsy").messages)

    def demonstrations(self, tokenizer: Any, count: int, seed: int, errant: bool, other: float) -> Iterator[Document]:
        env = HouseholdEnv(self.env.horizon, ERRANT if errant else Mistakes())
        for number, task in enumerate(env.tasks("train", count, seed), seed):
            yield encode(env.demonstrate(task, quality="clumsy", seed=number).messages, tokenizer, other)

    def drills(self, tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
        return reading_documents(self.env, tokenizer, count, seed, weight)


# -- worlds of tools ---------------------------------------------------------------------------------------------------

_LONG = 24  # most turns of an episode of the clumsy experts, many more than they need
_SHELF = 16  # number of draws of demonstrations that are kept for reuse, because commands in a sandbox are slow
_DIALOGUE = apibank.Mistakes(wrong=0.16, unknown=0.14, missing=0.14, repeat=0.1, look=0.08, early=0.16)
_MUDDLE = 0.4


def _bfcl(errant: bool, thinks: bool = False) -> list[Environment]:
    given: dict[str, Any] = {"horizon": _LONG, "mistakes": _DIALOGUE, "muddle": _MUDDLE} if errant else {}
    plain, made_up = (bfcl.BfclEnv(**given, thinks=thinks) for _ in range(2))
    made_up.source = TinyTasks(simulated_names)
    return [plain, made_up]


def _apibank(errant: bool, thinks: bool = False) -> list[Environment]:
    given: dict[str, Any] = {}
    if errant:
        given = {"horizon": _LONG, "steps": _LONG, "mistakes": _DIALOGUE, "muddle": _MUDDLE}
    plain, made_up = (apibank.ApiBankEnv(**given, thinks=thinks) for _ in range(2))
    made_up.source = OfficeTasks(names=office_names)
    return [plain, made_up]


def _search(errant: bool) -> list[Environment]:
    """Returns other editions of the encyclopaedia than that of the tasks: names and questions recur with other answers."""
    given: dict[str, Any] = {}
    if errant:
        given = {"horizon": _LONG, "mistakes": search.Mistakes(repeat=0.1, stray=0.15, vague=0.15, malformed=0.1)}
    return [search.SearchEnv("tiny", edition, **given) for edition in range(1, 9)]


def _math(errant: bool) -> list[Environment]:
    if errant:
        mistakes = math.Mistakes(slip=0.2, broken=0.15, repeat=0.05, malformed=0.15)
        return [math.MathEnv("tiny", horizon=_LONG, mistakes=mistakes)]
    return [math.MathEnv("tiny")]


def _terminal(errant: bool) -> list[Environment]:
    if errant:
        slips = terminal.Slips(look=0.2, misspell=0.2, guess=0.1, stray=0.05)
        return [terminal.TerminalEnv(horizon=_LONG, slips=slips)]
    return [terminal.TerminalEnv()]


def _software(errant: bool) -> list[Environment]:
    if errant:
        slips = software.Slips(again=0.08, astray=0.14, lost=0.08, wrong=0.2)
        return [software.SoftwareEnv(horizon=_LONG, slips=slips)]
    return [software.SoftwareEnv()]


# Name of an environment -> the environments whose demonstrations are imitated, in turn; the argument says whether they
# have the clumsy expert.
WORLDS: Mapping[str, Callable[[bool], list[Environment]]] = {
    "bfcl": _bfcl,
    "apibank": _apibank,
    "search": _search,
    "math": _math,
    "terminal": _terminal,
    "software": _software,
}
THINKING: Mapping[str, Callable[[bool], list[Environment]]] = {
    "bfcl": partial(_bfcl, thinks=True),
    "apibank": partial(_apibank, thinks=True),
}
_BOXED = ("terminal", "software")

# Size of a base that thinks -> the settings of its recipe that differ, for tables that compare model sizes
SIZES: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "medium": {"hidden": 144, "head": 36, "mlp": 384},
    "small": {"hidden": 128, "head": 32, "mlp": 320, "layers": 2},
}
TOOLS = Recipe(
    steps=1400,
    layers=3,
    reading=0,
    settling=120,
    demonstrations=24,
    drills=8,
    skills=32,
    other_weight=0.0,
    vocabulary=2048,
    theta=1e6,
    induction=1,
)


@dataclass
class ToolWorlds:
    """Experts of the worlds of tools, which state thoughts with ``thinks``, and drills in copying."""

    worlds: tuple[str, ...] = tuple(WORLDS)
    thinks: bool = False
    recipe: Recipe = TOOLS
    name: str = "tiny_tools"
    max_tokens: int = 40
    about: str = "demonstrations of six worlds of tools"
    stretches: str = (
        "It begins with heads that copy, set by hand (`scripts/recipes/tiny/model.py`). Two stretches\n"
        "(`scripts/recipes/tiny/settings.py`): imitation of the good experts with the skills and drills in copying among it;\n"
        "imitation of clumsy ones that err often (`scripts/recipes/tiny/mixtures.py`). Demonstrations come from the train\n"
        "splits alone, those of search from other editions of the encyclopaedia, and skills from their train items\n"
        "alone. Half of the demonstrations of bfcl and apibank have made-up names."
    )

    def texts(self, seed: int) -> Iterable[str]:
        for world in self.worlds:
            for messages in _drawn(world, self.thinks, False, "clumsy", 80, seed):
                yield from (m["content"] for m in messages)

    def demonstrations(self, tokenizer: Any, count: int, seed: int, errant: bool, other: float) -> Iterator[Document]:
        shares = [count // len(self.worlds) + (i < count % len(self.worlds)) for i in range(len(self.worlds))]
        draw, epoch = seed % _SHELF, seed // _SHELF
        quality: Quality = "clumsy" if errant else "good"
        for world, share in zip(self.worlds, shares, strict=True):
            if world in _BOXED:  # demonstrations that need a sandbox are repeated in every epoch
                found = _kept(world, errant, quality, share, draw)
            else:
                found = _drawn(world, self.thinks, errant, quality, share, draw + _SHELF * epoch)
            for messages in found:
                yield encode(messages, tokenizer, other)

    def drills(self, tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
        return copy_documents(tokenizer, count, seed, weight)


def llama() -> ToolWorlds:
    """Returns the mixture of the base of a second model family.

    It has three environments, and therefore half of the demonstrations and fewer steps.
    """
    return ToolWorlds(
        worlds=("bfcl", "search", "math"),
        recipe=replace(TOOLS, family="llama", steps=1000, demonstrations=12),
        name="tiny_llama",
        about="demonstrations of three worlds of tools",
        stretches="As `tiny_tools`, on another architecture and in three of its worlds.",
    )


def thinking(size: str = "") -> ToolWorlds:
    """Returns the mixture of the base that thinks before it calls. ``size`` is one of ``SIZES``; "" is the largest.

    It has two environments of dialogues, and therefore half of the demonstrations and steps.
    """
    return ToolWorlds(
        worlds=tuple(THINKING),
        thinks=True,
        recipe=replace(TOOLS, steps=1000, demonstrations=12, **SIZES[size]),
        name="_".join(filter(None, ("tiny_thinking", size))),
        max_tokens=64,
        about="demonstrations of two worlds of dialogues whose experts state their thoughts",
        stretches=(
            "As `tiny_tools`, in bfcl and apibank alone. Before each reply the experts state which calls the request still\n"
            "needs, in order (`src/turnwise_worlds/tool_dialogues.py`). Of the clumsy ones' right replies four in ten follow\n"
            "a wrong thought, and most of their wrong ones do."
        ),
    )


MIXTURES: Mapping[str, Callable[[], Mixture]] = {
    "tiny": Household,
    "tiny_tools": ToolWorlds,
    "tiny_thinking": thinking,
    "tiny_thinking_medium": partial(thinking, "medium"),
    "tiny_thinking_small": partial(thinking, "small"),
    "tiny_llama": llama,
}


@cache
def _environments(world: str, thinks: bool, errant: bool) -> Sequence[Environment]:
    return (THINKING if thinks else WORLDS)[world](errant)


def _drawn(
    world: str, thinks: bool, errant: bool, quality: Quality, count: int, draw: int
) -> tuple[tuple[Message, ...], ...]:
    environments = _environments(world, thinks, errant)
    found = []
    for i, environment in enumerate(environments):
        share = count // len(environments) + (i < count % len(environments))
        for number, task in enumerate(environment.tasks("train", share, draw)):
            found.append(demonstrated(environment, task, quality, draw * 1000 + number).messages)
    return tuple(found)


@lru_cache(maxsize=4 * _SHELF)
def _kept(world: str, errant: bool, quality: Quality, count: int, draw: int) -> tuple[tuple[Message, ...], ...]:
    return _drawn(world, False, errant, quality, count, draw)
