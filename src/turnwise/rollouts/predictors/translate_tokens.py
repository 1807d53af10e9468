"""Converts trees from the policy's tokens to the critic's, if the two models have different vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from turnwise.types import RolloutTree, Turn


@dataclass(frozen=True)
class Translation:
    """Converts trees from the policy's tokens to the critic's.

    Args:
        policy: the policy's tokenizer, which produced the token ids of the trees.
        critic: the critic's tokenizer.
    """

    policy: Any
    critic: Any

    def __call__(self, tree: RolloutTree) -> RolloutTree:
        """Returns a copy of the tree whose state and turns are tokenised by the critic's tokenizer.

        Equal token sequences of the policy become equal token sequences of the critic.
        """
        state = replace(tree.state, ids=self._ids(tree.state.ids))
        return replace(tree, state=state, turns=[self._turn(turn) for turn in tree.turns])

    def _turn(self, turn: Turn) -> Turn:
        """Tokenises an action and its observation together, or separately if the observation begins a conversation."""
        if turn.anew:
            said, seen = self._ids(tuple(turn.action_ids)), self._ids(tuple(turn.observation_ids))
            return Turn(turn.parent, list(said), [], observation_ids=list(seen), anew=True)
        return Turn(turn.parent, list(self._ids((*turn.action_ids, *turn.observation_ids))), [])

    def _ids(self, ids: Sequence[int]) -> tuple[int, ...]:
        return self._known(tuple(ids))

    @cached_property
    def _known(self) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
        return lru_cache(maxsize=65536)(self._retokenised)  # each instance has its own cache, which is freed with it

    def _retokenised(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        text = self.policy.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return tuple(self.critic.encode(text, add_special_tokens=False))


def translation(policy: Any, critic: Any) -> Translation | None:
    """Returns a converter from the policy's to the critic's tokens, or None if both have the same vocabulary."""
    return None if policy.get_vocab() == critic.get_vocab() else Translation(policy, critic)
