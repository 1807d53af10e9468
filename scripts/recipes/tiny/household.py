"""Defines the training mixture of the base for the household: a clumsy expert, and drills in reading lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scripts.recipes.tiny.corpus import Document, encode
from scripts.recipes.tiny.measure import reads
from scripts.recipes.tiny.reading import drill_documents
from scripts.recipes.tiny.recipe import Recipe

from turnwise.env import Environment
from turnwise_worlds.household import HouseholdEnv, Mistakes

# This expert often sees the object of its task and walks away, so that nearly every mistake can be detected from a
# single turn.
ERRANT = Mistakes(revisit=0.1, idle=0.1, leave=0.35, wrong=0.08, premature=0.05, inadmissible=0.05)


@dataclass(frozen=True)
class Household:
    """The training mixture for the household; see ``scripts.recipes.tiny.mixture.Mixture``."""

    env: HouseholdEnv = field(default_factory=HouseholdEnv)
    recipe: Recipe = field(default_factory=Recipe)
    name: str = "tiny"
    worlds: tuple[str, ...] = ("household",)
    max_tokens: int = 24
    about: str = "clumsy demonstrations of the household world, drills in reading its lists"
    stretches: str = (
        "Three stretches (`scripts/recipes/tiny/recipe.py`): imitation of the clumsy expert with the skills among it; drills in\n"
        "reading lists; imitation of an expert that errs more and above all walks away. Demonstrations and drills come from the\n"
        "train split alone, skills from their train items alone."
    )

    def texts(self, seed: int) -> Iterable[str]:
        """Returns the texts of 600 demonstrations."""
        for task in self.env.tasks("train", 600, seed=seed):
            yield from (m["content"] for m in self.env.demonstrate(task, quality="clumsy").messages)

    def demonstrations(self, tokenizer: Any, count: int, seed: int, errant: bool, other: float) -> Iterator[Document]:
        """Returns documents of new training tasks with one demonstration of the clumsy expert each."""
        env = HouseholdEnv(self.env.horizon, ERRANT if errant else Mistakes())
        for number, task in enumerate(env.tasks("train", count, seed), seed):
            yield encode(env.demonstrate(task, quality="clumsy", seed=number).messages, tokenizer, other)

    def drills(self, tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
        """Returns drills on the lists of rooms; see ``scripts.recipes.tiny.reading``."""
        return drill_documents(self.env, tokenizer, count, seed, weight)

    def details(
        self, model: Any, tokenizer: Any, worlds: Mapping[str, Environment], found: dict[str, Any], tasks: int
    ) -> str:
        """Returns a text for the card that says how well the base reads lists."""
        sampled = found["worlds"]["household"]["sampled"]
        return (
            f"Of its sampled actions {100 * sampled['inadmissible']:.1f} % are inadmissible.\n\n"
            "**Reading**: P(take) tells lists that hold the task's object from others with an area under the ROC curve\n"
            f"of {reads(model.eval(), tokenizer, worlds['household'], tasks):.3f} (lists that the good expert sees in {tasks} "
            "held-out tasks; 0.5 is blind)."
        )
