"""What a base is trained on: the interface behind which the recipe knows no world."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from recipes.tiny.corpus import Document

from turnwise.envs.environment import Environment

if TYPE_CHECKING:
    from recipes.tiny.recipe import Recipe


class Mixture(Protocol):
    """The documents of one base. It travels to the process that draws them, so it can be pickled."""

    @property
    def name(self) -> str:
        """Of the base."""
        ...

    @property
    def recipe(self) -> Recipe:
        """Its settings."""
        ...

    @property
    def worlds(self) -> tuple[str, ...]:
        """Names of environments."""
        ...

    @property
    def max_tokens(self) -> int:
        """Of a reply."""
        ...

    @property
    def about(self) -> str:
        """The card's words for what it is trained on."""
        ...

    @property
    def stretches(self) -> str:
        """And for how."""
        ...

    def texts(self, seed: int) -> Iterable[str]:
        """What the tokenizer's vocabulary is counted on, toy skills aside."""
        ...

    def demonstrations(self, tokenizer: Any, count: int, seed: int, errant: bool, other: float) -> Iterator[Document]:
        """``count`` demonstrations of training tasks; the same arguments give the same documents.

        Args:
            errant: by the expert of the last stretch, which errs far more.
            other: loss weight of tokens that the assistant does not write.
        """
        ...

    def drills(self, tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
        """``count`` drills of what demonstrations teach too seldom; a choice or a token of an answer weighs ``weight``."""
        ...

    def details(
        self, model: Any, tokenizer: Any, worlds: Mapping[str, Environment], found: dict[str, Any], tasks: int
    ) -> str:
        """What the card says beside its tables; may be empty. ``found`` is what ``recipes.tiny.measure.measure`` returned."""
        ...
