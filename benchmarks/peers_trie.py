"""Defines a peer: the packed trie of TRL's asynchronous trainer, with Turnwise's head and loss.

TRL 1.16 (``trl.experimental.async_grpo.packing``) arranges the samples of a row as a trie and attends by
variable-length FlashAttention over gathered paths. Both are TRL's own code. Rows are arranged before the time is
measured, which a trainer could not do. Without the package ``kernels``, torch's FlashAttention is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gathered import variable
from turnwise.methods.loss import Counts, LossInputs
from turnwise.models.attention import backbone
from turnwise.models.logprobs import Head, selected_logprobs_and_entropy
from turnwise.rollouts.pack import pack
from turnwise.types import Credit, RolloutTree
from updates import LOSS, Credits, Padded, Trees, casting

WHOLE = 1 << 30


@cache
def attention() -> str:
    """Returns the name under which TRL's attention is registered with transformers."""
    from trl.experimental.async_grpo import packing

    if find_spec("kernels") is None:

        def varlen(q: Tensor, k: Tensor, v: Tensor, *rest: Any, softmax_scale: float, **_: Any) -> Tensor:
            queries, keys, most_q, most_k = rest
            return variable(q, k, v, queries, keys, int(most_q), int(most_k), softmax_scale)

        packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=varlen)
    packing.register_tree_attention()
    return str(packing.TREE_ATTENTION)


@dataclass(frozen=True, slots=True)
class Row:
    """A trie as TRL packs it, and the credit of its trained tokens in TRL's order."""

    inputs: dict[str, Tensor]
    advantage_K: Tensor
    turn_K: Tensor


def row_of(tree: RolloutTree, given: Credit, device: torch.device) -> Row:
    """Returns one tree as a row: every leaf's path is a sample, and a turn is trained in the first sample with it."""
    from trl.experimental.async_grpo.packing import TreeRow

    row, trained = TreeRow(), set[int]()
    turns: list[int] = []
    for leaf in tree.leaves():
        ids, mask, old = list(tree.state.ids), [0] * len(tree.state.ids), [0.0] * len(tree.state.ids)
        for index in tree.path(leaf):
            turn = tree.turns[index]
            new = index not in trained
            trained.add(index)
            ids += [*turn.action_ids, *turn.observation_ids]
            mask += [int(new)] * len(turn.action_ids) + [0] * len(turn.observation_ids)
            old += [*turn.logprobs, *([0.0] * len(turn.observation_ids))]
            turns += [index] * len(turn.action_ids) if new else []
        row.add(
            {
                "input_ids": torch.tensor(ids),
                "completion_mask": torch.tensor(mask),
                "old_log_probs": torch.tensor(old),
                "advantage": 0.0,
                "group_id": 0,
            }
        )
    inputs = {name: value.to(device) for name, value in row.pack().items()}
    turn_K = torch.tensor(turns, device=device)
    return Row(inputs, torch.tensor([given.advantage[i] for i in turns], device=device), turn_K)


class TrlTrie(Padded):
    """TRL's packing and attention, with one row per tree."""

    def __init__(self, shape: str, dtype: str, device: torch.device) -> None:
        super().__init__(shape, dtype, device)
        self.model.get_base_model().set_attn_implementation(attention())

    def rows(self, trees: Trees, credits: Credits, tokens: int) -> tuple[list[Row], Counts]:
        """Returns a row for each tree, and the denominators of the loss; ``tokens`` is not used."""
        rows = [row_of(tree, credit, self.device) for tree, credit in zip(trees, credits, strict=True)]
        return rows, pack(trees, credits, WHOLE, WHOLE, merge=False).counts

    def backward(self, prepared: tuple[list[Row], Counts]) -> None:
        rows, counts = prepared
        for row in rows:
            with casting(self.device, self.dtype):
                loss = LOSS(self.trie_inputs(row, counts)).loss
            loss.backward()

    def trie_inputs(self, row: Row, counts: Counts) -> LossInputs:
        given = row.inputs
        longest = given["tree_max_seqlens"].tolist()
        out = backbone(self.model)(
            input_ids=given["input_ids"][None],
            position_ids=given["position_ids"][None],
            use_cache=False,
            tree_kv_index=given["tree_kv_index"],
            tree_cu_seqlens_q=given["tree_cu_seqlens_q"],
            tree_cu_seqlens_k=given["tree_cu_seqlens_k"],
            tree_max_seqlen_q=longest[0],
            tree_max_seqlen_k=longest[1],
        )
        place_K = given["token_index"]
        targets_K = given["shift_labels"][place_K]
        hidden_K = out.last_hidden_state[0, place_K]
        logprobs_K, entropy_K = selected_logprobs_and_entropy(hidden_K, Head(self.model).weight, targets_K)
        return LossInputs(
            logprobs_K=logprobs_K,
            entropy_K=entropy_K,
            old_logprobs_K=given["old_log_probs"],
            advantage_K=row.advantage_K,
            weight_K=torch.ones_like(row.advantage_K),
            turn_K=row.turn_K,
            sequence_K=row.turn_K,
            share_K=torch.ones_like(row.advantage_K),
            counts=counts,
        )
