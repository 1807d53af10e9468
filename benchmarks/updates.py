"""Defines several ways to make one optimiser step: Turnwise, padded rows under transformers' attention, TRL's loss, and
the packed trie of TRL's asynchronous trainer.

All have the same LoRA weights, samples and AdamW. The padded peer gets prepared, right-padded rows, so that it runs the
causal kernel without a mask, with log-probs only of the trained tokens. It is as fast as this layout allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from common import policy_of
from turnwise.config.settings import UpdateSettings
from turnwise.methods.loss import Clipped, Counts, LossInputs, inputs
from turnwise.models.attention import backbone
from turnwise.models.logprobs import Head, selected_logprobs_and_entropy
from turnwise.rollouts.pack import Packed, Update, pack
from turnwise.training.policy_module import PolicyModule, recomputing
from turnwise.types import Credit, RolloutTree
from work import remember, trl_inputs

RANK, ALPHA = 16, 32.0  # conf/policy/tiny.yaml
NORM, RATE = 1.0, 1e-4
WHOLE = 1 << 30
LOSS = Clipped(aggregation="token_mean")  # gives the same loss for every way of putting turns into rows

Trees = Sequence[RolloutTree]
Credits = Sequence[Credit]


class Ours:
    """Packing and Lightning's ``training_step``, with a plain optimiser instead of the Trainer's wrapper.

    ``recompute`` and ``offload`` are as ``update.recompute`` and ``update.offload``.
    """

    def __init__(
        self, shape: str, dtype: str, device: torch.device, recompute: bool = False, offload: bool = False
    ) -> None:
        self.device, self.dtype = device, dtype
        self.model = policy_of(shape, dtype, device, RANK, ALPHA).train()
        settings = UpdateSettings(RATE, clip_norm=NORM, recompute=recompute, offload=offload)
        self.module = PolicyModule(self.model, LOSS, settings).to(device)  # the module stores its device
        (optimizer,), (schedule,) = self.module.configure_optimizers()
        module: Any = self.module
        module.optimizers, module.lr_schedulers = lambda: optimizer, lambda: schedule
        module.manual_backward = lambda loss: loss.backward()

    def prepare(self, trees: Trees, credits: Credits, tokens: int) -> Callable[[], None]:
        """Returns a function that packs and makes one step. ``tokens`` bounds the tokens of a row and of a pass."""

        def step() -> None:
            with casting(self.device, self.dtype):
                self.module.training_step(pack(trees, credits, tokens, tokens))

        return step

    def gradients(self, trees: Trees, credits: Credits, tokens: int) -> dict[str, Tensor]:
        self.model.zero_grad()
        update = pack(trees, credits, tokens, tokens)
        for batch in update.batches:
            with recomputing(self.module.recomputed):
                with casting(self.device, self.dtype):
                    loss = self.module.loss(self.module.loss_inputs(batch, update)).loss
                loss.backward()
        return taken(self.model)

    @torch.no_grad()
    def sampled(self, tree: RolloutTree, credit: Credit, seed: int) -> None:
        """Writes into the tree the log-probs of a sampler near this policy."""
        update = pack([tree], [credit], WHOLE, WHOLE, merge=False)
        parts = [self.module.loss_inputs(batch, update) for batch in update.batches]
        turns = torch.cat([part.turn_K for part in parts])
        logprobs = torch.cat([part.logprobs_K for part in parts])
        order = torch.argsort(turns, stable=True)
        remember(tree, logprobs[order], seed)


class Padded:
    """One right-padded row per sample or leaf's path. A pass takes rows of similar length, up to ``tokens`` tokens.

    Other peers override ``rows``, which arranges the samples before the time is measured, and ``backward``.
    """

    def __init__(self, shape: str, dtype: str, device: torch.device) -> None:
        self.device, self.dtype = device, dtype
        self.model = policy_of(shape, dtype, device, RANK, ALPHA).train()
        self.model.get_base_model().set_attn_implementation("sdpa")
        self.optimizer = torch.optim.AdamW([p for p in self.model.parameters() if p.requires_grad], lr=RATE, fused=True)

    def prepare(self, trees: Trees, credits: Credits, tokens: int) -> Callable[[], None]:
        """Returns a function that makes one step. Its rows are prepared here."""
        rows = self.rows(trees, credits, tokens)

        def step() -> None:
            self.optimizer.zero_grad(set_to_none=True)
            self.backward(rows)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), NORM)
            self.optimizer.step()

        return step

    def gradients(self, trees: Trees, credits: Credits, tokens: int) -> dict[str, Tensor]:
        self.model.zero_grad()
        self.backward(self.rows(trees, credits, tokens))
        return taken(self.model)

    def rows(self, trees: Trees, credits: Credits, tokens: int) -> Any:
        return pack(trees, credits, WHOLE, tokens, merge=False)

    def backward(self, update: Any) -> None:
        for batch in update.batches:
            with casting(self.device, self.dtype):
                loss = LOSS(self.inputs(batch.to(self.device), update)).loss
            loss.backward()

    def inputs(self, batch: Packed, update: Update) -> LossInputs:
        hidden = backbone(self.model)(input_ids=batch.ids_BS, use_cache=False).last_hidden_state
        hidden_U = hidden.flatten(0, 1)[batch.source_U]
        logprobs_U, entropy_U = selected_logprobs_and_entropy(hidden_U, Head(self.model).weight, batch.target_U)
        unique_K = batch.items.unique_K
        return inputs(batch.items, logprobs_U[unique_K], update.counts, entropy_K=entropy_U[unique_K])


class Trl(Padded):
    """TRL's loss on the same samples. TRL accumulates gradients over passes of equally many rows, whose tensors are
    prepared beforehand. ``tokens`` bounds the tokens of a pass.
    """

    def __init__(self, shape: str, dtype: str, device: torch.device, samples: int) -> None:
        from peers_trl import Loss

        super().__init__(shape, dtype, device)
        self.loss = Loss(self.model, samples)
        self.model = self.loss.trainer.model.train()

    def rows(self, trees: Trees, credits: Credits, tokens: int) -> list[dict[str, Tensor]]:
        (tree,), (credit,) = trees, credits
        return parts_of(trl_inputs(tree, credit, self.device), tokens)

    def backward(self, passes: list[dict[str, Tensor]]) -> None:
        self.loss.trainer.current_gradient_accumulation_steps = len(passes)
        for one_pass in passes:
            with casting(self.device, self.dtype):
                loss = self.loss(one_pass)
            loss.backward()


def parts_of(inputs: dict[str, Tensor], tokens: int) -> list[dict[str, Tensor]]:
    """Returns TRL's tensors cut into passes of equally many rows, at most ``tokens`` tokens (or one row)."""
    rows, width = len(inputs["prompt_ids"]), inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1]
    fitting = max(1, tokens // width)
    each = max(n for n in range(1, rows + 1) if rows % n == 0 and n <= fitting)
    return [
        {name: value[at : at + each] if value.ndim else value for name, value in inputs.items()}
        for at in range(0, rows, each)
    ]


@cache
def variable(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, most_q: int, most_k: int, scaling: float
) -> Tensor:
    """Returns causal attention of each stretch over the keys of its path, aligned at their ends.

    On CUDA this is torch's variable-length FlashAttention. On a CPU there is none: torch's attention is called for each
    stretch, to test the layout, and its time is no measurement.

    Args:
        q: (S, H, D).
        k, v: (K, H_kv, D), the paths side by side.
        queries, keys: int32 indices at which stretches and paths begin, followed by the end of the last of them.
        most_q, most_k: number of tokens of the longest stretch and of the longest path.
    """
    if q.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        # torch 2.13 has an argument that says that queries share the heads of keys; torch 2.11 detects this by itself
        grouped = q.shape[1] != k.shape[1] and "enable_gqa" in signature(varlen_attn).parameters
        more: dict[str, Any] = {"enable_gqa": True} if grouped else {}
        out: Any = varlen_attn(
            q.contiguous(), k, v, queries, keys, most_q, most_k, scale=scaling, window_size=(-1, 0), **more
        )
        return out  # type: ignore[no-any-return]
    parts = []
    for q0, q1, k0, k1 in zip(queries.tolist(), queries.tolist()[1:], keys.tolist(), keys.tolist()[1:]):
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(k1 - k0 - (q1 - q0))
        one, other, third = (x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        answer = F.scaled_dot_product_attention(one, other, third, seen, scale=scaling, enable_gqa=True)
        parts.append(answer[0].transpose(0, 1))
    return torch.cat(parts)


def attention() -> str:
    """Returns the name under which TRL's attention is registered with transformers. Its kernel comes with the package
    ``kernels``; without it, torch's variable-length FlashAttention is used.
    """
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
    """TRL 1.16's own packing and attention (``trl.experimental.async_grpo.packing``) with our head and loss, one row per
    tree. Rows are arranged before the time is measured, which a trainer could not do.
    """

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


def casting(device: torch.device, dtype: str) -> AbstractContextManager[Any]:
    """Returns a context with mixed precision for bfloat16, as Lightning's bf16-mixed, and otherwise without effect."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == "bfloat16")


def taken(model: Any) -> dict[str, Tensor]:
    """Returns copies of the gradients of the trained parameters, by name."""
    return {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.requires_grad and p.grad is not None}


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Returns the largest absolute difference of two gradients of the same parameters, relative to ``b``'s largest entry."""
    largest = max(float(g.abs().max()) for g in b.values())
    return max(float((a[name] - b[name]).abs().max()) for name in b) / largest
