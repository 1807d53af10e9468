"""Defines the training mixture of the base for the tool-use environments at their tiny levels.

For each environment, a good expert is imitated first. Then a clumsy expert is imitated, which makes many mistakes and
has enough turns to correct them. The environment's verifier of single turns refuses every mistake, so that a base with
these mistakes has room to improve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any

from scripts.recipes.tiny import names
from scripts.recipes.tiny.copying import copy_documents
from scripts.recipes.tiny.corpus import Document, encode
from scripts.recipes.tiny.recipe import Recipe

from turnwise.env import Environment, Quality
from turnwise.types import Message
from turnwise_worlds import apibank, bfcl, math, search, software, terminal
from turnwise_worlds.apibank.office import OfficeTasks
from turnwise_worlds.bfcl.requests import TinyTasks

_LONG = 24  # most turns of an episode of the clumsy experts, many more than they need
_SHELF = 16  # number of draws of demonstrations that are kept for reuse, because commands in a sandbox are slow
_DIALOGUE = apibank.Mistakes(wrong=0.16, unknown=0.14, missing=0.14, repeat=0.1, look=0.08, early=0.16)
_MUDDLE = 0.4


def _bfcl(errant: bool, thinks: bool = False) -> list[Environment]:
    given: dict[str, Any] = {"horizon": _LONG, "mistakes": _DIALOGUE, "muddle": _MUDDLE} if errant else {}
    plain, made_up = (bfcl.BfclEnv(**given, thinks=thinks) for _ in range(2))
    made_up.source = TinyTasks(names.simulated)
    return [plain, made_up]


def _apibank(errant: bool, thinks: bool = False) -> list[Environment]:
    given: dict[str, Any] = (
        {"horizon": _LONG, "steps": _LONG, "mistakes": _DIALOGUE, "muddle": _MUDDLE} if errant else {}
    )
    plain, made_up = (apibank.ApiBankEnv(**given, thinks=thinks) for _ in range(2))
    made_up.source = OfficeTasks(names=names.office)
    return [plain, made_up]


def _search(errant: bool) -> list[Environment]:
    """Returns other editions of the encyclopaedia than that of the tasks.

    Names and questions recur with other answers; no page does.
    """
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


WORLDS: Mapping[str, Callable[[bool], list[Environment]]] = {
    "bfcl": _bfcl,
    "apibank": _apibank,
    "search": _search,
    "math": _math,
    "terminal": _terminal,
    "software": _software,
}
"""Name of an environment -> function that returns the environments whose demonstrations are imitated, in turn.

The function's argument says whether the environments have the clumsy expert.
"""
THINKING: Mapping[str, Callable[[bool], list[Environment]]] = {
    "bfcl": partial(_bfcl, thinks=True),
    "apibank": partial(_apibank, thinks=True),
}
"""Like ``WORLDS``, for environments whose experts state their thoughts."""


SIZES: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "medium": {"hidden": 144, "head": 36, "mlp": 384},
    "small": {"hidden": 128, "head": 32, "mlp": 320, "layers": 2},
}
"""Size of a base that thinks -> the settings of its recipe that differ. The sizes are for tables that compare model
sizes.
"""


def _recipe() -> Recipe:
    return Recipe(
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


@dataclass(frozen=True)
class ToolWorlds:
    """The training mixture for tool use (``scripts.recipes.tiny.mixture.Mixture``); with ``thinks``, experts state thoughts."""

    worlds: tuple[str, ...] = tuple(WORLDS)
    thinks: bool = False
    recipe: Recipe = field(default_factory=_recipe)
    name: str = "tiny_tools"
    max_tokens: int = 40
    about: str = "demonstrations of six worlds of tools"
    stretches: str = (
        "It begins with heads that copy, set by hand (`scripts/recipes/tiny/induction.py`). Two stretches\n"
        "(`scripts/recipes/tiny/recipe.py`): imitation of the good experts with the skills and drills in copying among it;\n"
        "imitation of clumsy ones that err often (`scripts/recipes/tiny/toolworlds.py`). Demonstrations come from the train\n"
        "splits alone, those of search from other editions of the encyclopaedia, and skills from their train items\n"
        "alone. Half of the demonstrations of bfcl and apibank have made-up names."
    )

    def texts(self, seed: int) -> Iterable[str]:
        for world in self.worlds:
            for messages in _drawn(world, self.thinks, False, "clumsy", 80, seed):
                yield from (m["content"] for m in messages)

    def demonstrations(self, tokenizer: Any, count: int, seed: int, errant: bool, other: float) -> Iterator[Document]:
        """Returns documents of new training tasks with one demonstration each, the environments in turn."""
        shares = [count // len(self.worlds) + (i < count % len(self.worlds)) for i in range(len(self.worlds))]
        for world, share in zip(self.worlds, shares, strict=True):
            for messages in _demonstrations(world, self.thinks, errant, share, seed % _SHELF, seed // _SHELF):
                yield encode(messages, tokenizer, other)

    def drills(self, tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
        """Returns drills on lines to copy; see ``scripts.recipes.tiny.copying``."""
        return copy_documents(tokenizer, count, seed, weight)

    def details(
        self, model: Any, tokenizer: Any, worlds: Mapping[str, Environment], found: dict[str, Any], tasks: int
    ) -> str:
        return ""


def llama() -> ToolWorlds:
    """Returns the mixture of the base of a second model family.

    It has three environments, and therefore half of the demonstrations and fewer steps.
    """
    return ToolWorlds(
        worlds=("bfcl", "search", "math"),
        recipe=replace(_recipe(), family="llama", steps=1000, demonstrations=12),
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
        recipe=replace(_recipe(), steps=1000, demonstrations=12, **SIZES[size]),
        name="_".join(filter(None, ("tiny_thinking", size))),
        max_tokens=64,
        about="demonstrations of two worlds of dialogues whose experts state their thoughts",
        stretches=(
            "As `tiny_tools`, in bfcl and apibank alone. Before each reply the experts state which calls the request still\n"
            "needs, in order (`src/turnwise_worlds/dialogues.py`). Of the clumsy ones' right replies four in ten follow\n"
            "a wrong thought, and most of their wrong ones do."
        ),
    )


@cache
def _environments(world: str, thinks: bool, errant: bool) -> Sequence[Environment]:
    return (THINKING if thinks else WORLDS)[world](errant)


_BOXED = ("terminal", "software")


def _demonstrations(
    world: str, thinks: bool, errant: bool, count: int, draw: int, epoch: int
) -> tuple[tuple[Message, ...], ...]:
    """Returns demonstrations of training tasks. Demonstrations that need a sandbox are repeated in every epoch."""
    if world in _BOXED:
        return _kept(world, errant, count, draw)
    return _drawn(world, thinks, errant, _quality(errant), count, draw + _SHELF * epoch)


@lru_cache(maxsize=4 * _SHELF)
def _kept(world: str, errant: bool, count: int, draw: int) -> tuple[tuple[Message, ...], ...]:
    return _drawn(world, False, errant, _quality(errant), count, draw)


def _quality(errant: bool) -> Quality:
    return "clumsy" if errant else "good"


def _drawn(
    world: str, thinks: bool, errant: bool, quality: Quality, count: int, draw: int
) -> tuple[tuple[Message, ...], ...]:
    environments = _environments(world, thinks, errant)
    found = []
    for i, environment in enumerate(environments):
        share = count // len(environments) + (i < count % len(environments))
        for number, task in enumerate(environment.tasks("train", share, draw)):
            found.append(environment.demonstrate(task, quality, draw * 1000 + number).messages)
    return tuple(found)
