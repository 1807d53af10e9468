"""The critic that predicts the success of a history (TRACE Eq. 17): its head, its packed inputs, and a policy's tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from turnwise.models.fast_llama import Forward, forward_of_body, own_forward
from turnwise.models.packed_logprobs import plan_of
from turnwise.rollouts.trie import Trie
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


Place = tuple[int, int]
"""Names a history: the index of its tree in the given list, and the turn after which it ends (-1: the root state)."""


@dataclass(slots=True)
class Histories:
    """The inputs of one forward pass: one row (B = 1) of S packed tokens that contain Q histories.

    ``models.packed_logprobs.PackedTokens`` explains the packed layout.
    """

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor
    last_Q: Tensor  # index of each history's last token in the row
    places: list[Place]  # the names of the Q histories


@dataclass(slots=True)
class _Spine:
    ids: list[int]
    lasts: list[tuple[Place, int]] = field(default_factory=list)  # histories, and the indices of their last tokens


@dataclass(slots=True)
class _Row:
    trie: Trie = field(default_factory=Trie)
    lasts: list[tuple[Place, int]] = field(default_factory=list)  # histories, and the trie nodes of their last tokens


def read_spines(trees: Sequence[RolloutTree], wanted: Sequence[Collection[int]], batch_tokens: int) -> list[Histories]:
    """Packs every requested history once, as a part of the first path of its tree that contains it.

    A path is packed only up to its last requested history. Paths with a common prefix share its tokens, even if they
    belong to different trees, because states of one environment begin with the same rules and tools. Paths without a
    common prefix can be in the same row too, but attention does not connect them.

    Args:
        trees: the trees of the histories.
        wanted: for each tree, the turns after which a requested history ends; -1 is the root state.
        batch_tokens: greatest number of tokens of one forward pass. A single path may be longer.

    Raises:
        ValueError: ``wanted`` contains a turn that its tree does not have.
    """
    spines: list[_Spine] = []
    for number, (tree, turns) in enumerate(zip(trees, wanted, strict=True)):
        spines += _spines(number, tree, turns)
    spines.sort(key=lambda spine: spine.ids)  # so that paths with long common prefixes become neighbours
    rows: list[_Row] = []
    for spine in spines:
        if not rows or len(rows[-1].trie) + len(spine.ids) - rows[-1].trie.shared(spine.ids)[0] > batch_tokens:
            rows.append(_Row())
        nodes = rows[-1].trie.add(spine.ids)
        rows[-1].lasts += [(place, nodes[last]) for place, last in spine.lasts]
    return [_histories(row) for row in rows]


def branchable(tree: RolloutTree) -> list[int]:
    """Returns -1 (the root state) and every turn that another turn follows: the places at which rollouts can branch."""
    parents = {turn.parent for turn in tree.turns}
    return [-1, *(i for i in range(len(tree.turns)) if i in parents)]


def _spines(number: int, tree: RolloutTree, turns: Collection[int]) -> Iterator[_Spine]:
    missing = set(turns)
    for leaf in tree.leaves() or [-1]:
        path = [-1, *tree.path(leaf)]
        if asked := missing.intersection(path):
            yield from _split(number, tree, path, asked)
            missing -= asked
    if missing:
        raise ValueError(f"state {tree.state.id!r} has no turns {sorted(missing)}")


def _split(number: int, tree: RolloutTree, path: Sequence[int], asked: set[int]) -> Iterator[_Spine]:
    """Yields, for each conversation of a path, its tokens up to the end of the last requested history in it.

    A path has several conversations if observations begin new ones (``Turn.anew``). ``asked`` holds the turns after
    which a requested history ends. Conversations without a requested history are left out.
    """
    spine = _Spine([])
    for turn in path:
        if turn >= 0 and tree.turns[turn].anew:
            yield from _cut(spine)
            spine = _Spine(list(tree.turns[turn].observation_ids))
        else:
            spine.ids += tree.state.ids if turn < 0 else tree.turns[turn].action_ids + tree.turns[turn].observation_ids
        if turn in asked:
            spine.lasts.append(((number, turn), len(spine.ids) - 1))
    yield from _cut(spine)


def _cut(spine: _Spine) -> Iterator[_Spine]:
    if spine.lasts:
        yield _Spine(spine.ids[: spine.lasts[-1][1] + 1], spine.lasts)


def _histories(row: _Row) -> Histories:
    layout = row.trie.layout()
    ids, position, end = (torch.from_numpy(of_S)[None] for of_S in (layout.ids_S, layout.position_S, layout.end_S))
    last_Q = torch.from_numpy(layout.place_N[[node for _, node in row.lasts]])
    return Histories(ids, position, end, last_Q, [place for place, _ in row.lasts])


class Critic(LightningModule):
    """Predicts V(history) = sigmoid(w . h + b), where h is the last layer's hidden state at the history's last token,
    and w and b are the weights of the scalar head.

    w and b are 0 initially, so that every history has the value 1/2 before training.

    Args:
        backbone: a transformer without an output head, with tree attention.
        learning_rate: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        autocast: whether to compute in bfloat16, whatever dtype the weights have.
    """

    def __init__(
        self, backbone: Any, learning_rate: float = 3e-5, weight_decay: float = 0.0, autocast: bool = False
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.config.hidden_size, 1, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.learning_rate, self.weight_decay, self.autocast = learning_rate, weight_decay, autocast
        self.eval()  # no dropout, so that prediction and training see the same value of a history

    def forward(self, histories: Histories) -> Tensor:
        """Returns the logits (Q,) of Q histories. The predicted success is the sigmoid of the logit."""
        return self._logits(histories, own_forward(self.backbone))

    @torch.no_grad()
    def values(self, histories: Histories) -> Tensor:
        """Returns the predicted success (Q,) of Q histories, in [0, 1], without gradients."""
        quickest = own_forward if self.autocast else forward_of_body
        return torch.sigmoid(self._logits(histories, quickest(self.backbone)))

    def _logits(self, histories: Histories, forward: Forward) -> Tensor:
        ids_BS, position_BS, end_BS, last_Q = (
            x.to(self.device) for x in (histories.ids_BS, histories.position_BS, histories.end_BS, histories.last_Q)
        )
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            hidden_BSC = forward(ids_BS, position_BS, plan_of(end_BS))
        return self.head(hidden_BSC.flatten(0, 1)[last_Q].float()).squeeze(-1)

    def training_step(self, batch: tuple[Histories, Tensor], batch_idx: int = 0) -> Tensor:
        """Returns the sum of squared errors over the Q histories of a forward pass (TRACE Eq. 19 without the mean).

        ``batch`` holds the histories and their targets (Q,).
        """
        histories, target_Q = batch
        return (torch.sigmoid(self(histories)) - target_Q.to(self.device)).square().sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)
