"""Computes log-probs and entropies of chosen tokens: from hidden states, with a model's own output head, and for packed
micro-batches.

In shapes, ``K`` or ``U`` is a flat axis of predicted tokens, ``D`` the hidden size, and ``V`` the vocabulary size.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from turnwise.models.attention import PackedTree, Plan, backbone, unwrapped
from turnwise.models.attention_cpu import RunTree
from turnwise.models.attention_gpu import BlockTree
from turnwise.models.fast_llama import packed_linear, should_pack

# -- a product of hidden states and output embedding -------------------------------------------------------------------


CHUNK = 1024  # number of hidden states whose logits are in memory at once
CPU_LOGITS = 1 << 23  # most logits of a chunk on a CPU: 32 MiB in float32


def selected_logprobs_and_entropy(
    hidden_K: Tensor,
    weight: Tensor,
    targets_K: Tensor,
    temperature: float = 1.0,
    chunk: int | None = None,
    entropy: bool = True,
) -> tuple[Tensor, Tensor]:
    """Returns log-probs (K,) of chosen tokens and the entropies (K,) of the next-token distributions, both in nats.

    The distributions are ``softmax(hidden @ weight.T / temperature)``. Only the logits of ``chunk`` positions are in
    memory at a time, and the backward pass recomputes them. Matrix products use the dtype of ``hidden_K``, and the
    softmax uses at least float32. Autocast is ignored, so that the forward and backward passes have the same logits.
    The results can be differentiated once, with respect to ``hidden_K`` and ``weight``.

    Args:
        hidden_K: last hidden states (K, D), each at the position that predicts its target.
        weight: output embedding (V, D).
        chunk: number of positions whose logits are in memory at once; None: ``CHUNK``, and fewer on a CPU if the
            vocabulary is large, because each of the threads that run side by side holds several copies of a chunk.
        entropy: whether to compute the entropies; otherwise an empty tensor is returned for them.
    """
    if not temperature > 0:
        raise ValueError(
            f"temperature must be positive, got {temperature}; greedy actions have no log-prob to train on"
        )
    if chunk is None:
        chunk = CHUNK if hidden_K.device.type != "cpu" else max(64, min(CHUNK, CPU_LOGITS // len(weight)))
    found: tuple[Tensor, Tensor] = _SelectedLogprobs.apply(
        hidden_K, weight, targets_K, float(temperature), chunk, entropy
    )
    return found


class _SelectedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, rows: Tensor, weight: Tensor, targets_K: Tensor, temperature: float, chunk: int, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(rows.dtype, torch.float32)
        logsumexp_K = rows.new_empty(len(rows), dtype=wide)
        logprobs_K = torch.empty_like(logsumexp_K)
        entropy_K = torch.empty_like(logsumexp_K) if entropy else logsumexp_K.new_empty(0)
        for start in range(0, len(rows), chunk):
            part = slice(start, start + chunk)
            logits = _logits(rows[part], weight, temperature)
            logsumexp_K[part] = logits.logsumexp(-1)
            chosen = logits.gather(-1, targets_K[part, None]).squeeze(-1)
            logprobs_K[part] = chosen - logsumexp_K[part]
            if entropy:
                probs = (logits - logsumexp_K[part, None]).exp_()
                entropy_K[part] = logsumexp_K[part] - probs.mul_(logits).sum(-1)
        ctx.save_for_backward(rows, weight, targets_K, logsumexp_K, entropy_K)
        ctx.temperature, ctx.chunk = temperature, chunk
        ctx.set_materialize_grads(False)  # if only the log-probs have a gradient, the backward pass skips the entropies
        return logprobs_K, entropy_K

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: Any, grad_logprobs_K: Tensor | None, grad_entropy_K: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        rows, weight, targets_K, logsumexp_K, entropy_K = ctx.saved_tensors
        need_rows, need_weight = ctx.needs_input_grad[:2]
        grad_rows = torch.empty_like(rows) if need_rows else None
        grad_weight = torch.zeros_like(weight, dtype=logsumexp_K.dtype) if need_weight else None
        if grad_logprobs_K is None:
            grad_logprobs_K = torch.zeros_like(logsumexp_K)
        for start in range(0, len(rows), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logs = _logits(rows[part], weight, ctx.temperature).sub_(logsumexp_K[part, None])
            probs = logs.exp()
            # d logprob / d logits = onehot - p, and d entropy / d logits = -p (log p + H)
            grad = probs * -grad_logprobs_K[part, None]
            grad.scatter_add_(-1, targets_K[part, None], grad_logprobs_K[part, None])
            if grad_entropy_K is not None:
                grad.sub_(probs.mul_(logs.add_(entropy_K[part, None])).mul_(grad_entropy_K[part, None]))
            grad = grad.div_(ctx.temperature).to(rows.dtype)
            with torch.autocast(rows.device.type, enabled=False):
                if grad_rows is not None:
                    grad_rows[part] = grad @ weight.to(rows.dtype)
                if grad_weight is not None:
                    grad_weight += grad.T @ rows[part]
        return grad_rows, grad_weight.to(weight.dtype) if grad_weight is not None else None, None, None, None, None


def _logits(rows: Tensor, weight: Tensor, temperature: float) -> Tensor:
    with torch.autocast(rows.device.type, enabled=False):
        logits = F.linear(rows, weight.to(rows.dtype)).to(torch.promote_types(rows.dtype, torch.float32))
    return logits if temperature == 1 else logits.div_(temperature)


# -- a model's own output head -----------------------------------------------------------------------------------------


_is_product: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()  # model -> the attribute ``plain`` of its heads


class Head:
    """The output head of a causal LM, which maps hidden states to logits with the model's own code.

    Some architectures scale, cap or bias their logits. So the model's forward pass is called, but its transformer is
    replaced by a module that returns the given hidden states. If a check shows that the logits are just the product of
    hidden states and output embedding, only this product is computed (``plain``).

    Args:
        model: a causal LM, with or without adapters. Its weights are read at every call and not copied,
            unless ``copies`` asks for a packed copy of the output embedding, as :class:`FastLlama` has one.

    Raises:
        ValueError: the model has no output embedding, or its forward pass fails when its transformer is replaced.
    """

    def __init__(self, model: nn.Module, copies: int = 0) -> None:
        self.base = unwrapped(model)
        if self.base.get_output_embeddings() is None:
            raise ValueError(
                f"{self.base.config.model_type}: the model has no output embedding; use a causal language model"
            )
        if self.base not in _is_product:
            _is_product[self.base] = self._is_product()
        self.plain = _is_product[self.base]
        pack = self.plain and should_pack([self.weight], copies)
        self._packed = packed_linear(self.weight, self.weight.dtype) if pack else None

    @property
    def weight(self) -> Tensor:
        """The output embedding of the model, (V, D)."""
        weight: Tensor = self.base.get_output_embeddings().weight
        return weight

    def __call__(self, hidden: Tensor) -> Tensor:
        """Returns the logits (N, V) for hidden states (N, D)."""
        if self._packed is not None:
            return self._packed(hidden)
        hidden = hidden.to(self.weight.dtype)
        return hidden @ self.weight.T if self.plain else self._own(hidden)

    def logprobs(
        self, hidden_U: Tensor, target_U: Tensor, temperature: float = 1.0, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the log-probs (U,) of chosen tokens and, if ``entropy`` is set, entropies (U,), both in nats.

        ``hidden_U`` (U, D) holds the last hidden states at the positions that predict the tokens.
        """
        if self.plain:
            of_plain = (hidden_U, self.weight, target_U, temperature)
            chosen, entropies = selected_logprobs_and_entropy(*of_plain, entropy=entropy)
        else:
            parts = [
                checkpoint(self._chosen, hidden, target, temperature, entropy, use_reentrant=False)
                for hidden, target in zip(hidden_U.split(CHUNK), target_U.split(CHUNK), strict=True)
            ]
            chosen, entropies = (torch.cat(found) for found in zip(*parts, strict=True))
        return chosen, entropies if entropy else None

    def _chosen(self, hidden: Tensor, target: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            logits = self._own(hidden.to(self.weight.dtype))
        logs = (logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature).log_softmax(-1)
        chosen = logs.gather(-1, target[:, None])[:, 0]
        # The clamp is needed because a token with probability 0 has log-prob -inf, and 0 * -inf is NaN.
        return chosen, -(logs.exp() * logs.clamp_min(torch.finfo(logs.dtype).min)).sum(-1) if entropy else chosen[:0]

    def _own(self, hidden: Tensor) -> Tensor:
        shell = object.__new__(type(self.base))  # shares everything with the model except the transformer
        shell.__dict__.update(self.base.__dict__)
        shell.__dict__["_modules"] = {**self.base._modules, self.base.base_model_prefix: _Given()}
        logits: Tensor = shell.forward(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits

    def _is_product(self) -> bool:
        """This holds if the head is a linear layer without bias, and the model changes neither the hidden states before
        this layer nor the logits after it.
        """
        layer = self.base.get_output_embeddings()
        seen: list[tuple[Tensor, Tensor, int]] = []
        hook = layer.register_forward_hook(lambda _, given, out: seen.append((given[0], out, out._version)))
        try:
            with torch.inference_mode(False), torch.no_grad():
                hidden = self.weight.new_zeros(1, self.weight.shape[1])
                logits = self._own(hidden)
        except Exception as error:  # the model's code may raise anything
            raise ValueError(
                f"{self.base.config.model_type}: the output head cannot be computed apart from the transformer "
                f"({type(error).__name__}: {error}); use a model that docs/models.md lists as exact"
            ) from error
        finally:
            hook.remove()
        if len(seen) != 1 or type(layer) is not nn.Linear or layer.bias is not None:
            return False
        given, out, version = seen[0]
        untouched = _shared(given, hidden) and hidden._version == 0 and given.shape[-1] == hidden.shape[-1]
        return untouched and _shared(out, logits) and logits._version == version


class _Given(nn.Module):
    """Replaces a model's transformer and returns its input as the last hidden states."""

    @property
    def decoder(self) -> _Given:  # some models use the attribute ``decoder`` of their transformer
        return self

    def forward(self, *_: Any, inputs_embeds: Tensor, **__: Any) -> _Output:
        return _Output(inputs_embeds)


class _Output:
    """The output of a transformer. Every attribute except ``last_hidden_state`` is None."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, place: Any) -> Any:
        return (self.last_hidden_state,)[place]


def _shared(a: Tensor, b: Tensor) -> bool:
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


# -- packed micro-batches ----------------------------------------------------------------------------------------------


# Attention on a GPU is computed in blocks if a micro-batch has at least this many pairs of tokens (rows * tokens^2).
# One row of 2,897 tokens has this many. On an H200, a dense mask was faster than blocks for one row of 2,048 tokens
# and slower for one row of 4,096 tokens (docs/benchmarks.md). For several rows, it is an assumption that the number of pairs
# decides: the time of a dense mask grows with the number of pairs, but the time to start kernels does not.
LARGE = 1 << 23


class PackedTokens(Protocol):
    """A batch of packed trees, and the tokens in them whose log-probs are computed (see ``rollouts.pack.Packed``)."""

    ids_BS: Tensor
    position_BS: Tensor
    end_BS: Tensor  # for each token, the index one past its last descendant
    source_U: Tensor  # for each predicted token, the flat index (within B * S) of the token before it
    target_U: Tensor  # ids of the predicted tokens


def score(
    model: Any, packed: PackedTokens, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Returns log-probs (U,) of the predicted tokens and, if ``entropy`` is set, entropies (U,) of their distributions,
    in nats. ``packed`` is on the model's device, and ``temperature`` the one at which the tokens were sampled.
    """
    plan = plan_of(packed.end_BS)
    out = backbone(model)(input_ids=packed.ids_BS, position_ids=packed.position_BS, use_cache=False, plan=plan)
    hidden_U = out.last_hidden_state.flatten(0, 1)[packed.source_U]
    return Head(model).logprobs(hidden_U, packed.target_U, temperature, entropy)


def plan_of(end_BS: Tensor) -> Plan:
    """Returns the fastest exact attention plan for packed trees, depending on device and size of the micro-batch.

    If ``end_BS`` has no data, as a meta tensor, this is the plan with a dense mask.
    """
    known = type(end_BS) is Tensor
    if known and end_BS.device.type == "cpu":
        return RunTree(end_BS)
    if known and end_BS.device.type == "cuda" and len(end_BS) * end_BS.shape[1] ** 2 >= LARGE:
        return BlockTree(end_BS)
    return PackedTree(end_BS)
