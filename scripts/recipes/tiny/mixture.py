"""Defines the interface of training mixtures, through which the recipe stays independent of any environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from scripts.recipes.tiny.corpus import Document

from turnwise.env import Environment

if TYPE_CHECKING:
    from scripts.recipes.tiny.recipe import Recipe


class Mixture(Protocol):
    """The documents of one base. A mixture must be picklable, because it is sent to processes that draw documents."""

    @property
    def name(self) -> str:
        """Name of the base."""
        ...

    @property
    def recipe(self) -> Recipe:
        """Settings of its recipe."""
        ...

    @property
    def worlds(self) -> tuple[str, ...]:
        """Names of its environments."""
        ...

    @property
    def max_tokens(self) -> int:
        """Greatest number of tokens of a reply."""
        ...

    @property
    def about(self) -> str:
        """Text of the model card on the data."""
        ...

    @property
    def stretches(self) -> str:
        """Text of the model card on the stretches of the training."""
        ...

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
        """Returns ``count`` drills of skills that are rare in demonstrations.

        A choice, or a token of an answer, has loss weight ``weight``.
        """
        ...

    def details(
        self, model: Any, tokenizer: Any, worlds: Mapping[str, Environment], found: dict[str, Any], tasks: int
    ) -> str:
        """Returns text for the card in addition to its tables. ``found`` is from ``scripts.recipes.tiny.measure.measure``."""
        ...
