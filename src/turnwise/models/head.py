"""Computes the logits of a causal LM from given last hidden states, with the model's own code.

Some architectures scale, cap or bias their logits. So the model's forward pass is called, but its transformer is
replaced by a module that returns the given hidden states. If a check shows that the logits are just the product of
hidden states and output embedding, only this product is computed.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from turnwise.models.attention import unwrapped
from turnwise.models.token_logprobs import selected_logprobs_and_entropy

CHUNK = 1024  # number of hidden states whose logits are in memory at once

_known: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


class Head:
    """The output head of a causal LM, which maps hidden states to logits.

    Args:
        model: a causal LM, with or without adapters. Its weights are read at every call and not copied.

    Raises:
        ValueError: the model has no output embedding, or its forward pass fails when its transformer is replaced.
    """

    def __init__(self, model: nn.Module) -> None:
        self.base = unwrapped(model)
        if self.base.get_output_embeddings() is None:
            raise ValueError(
                f"{self.base.config.model_type}: the model has no output embedding; use a causal language model"
            )
        if self.base not in _known:
            _known[self.base] = self._is_product()
        self.plain = _known[self.base]

    @property
    def weight(self) -> Tensor:
        """Returns the output embedding of the model, (V, C)."""
        weight: Tensor = self.base.get_output_embeddings().weight
        return weight

    def __call__(self, hidden: Tensor) -> Tensor:
        """Returns the logits (N, V) for hidden states (N, C)."""
        return hidden @ self.weight.T if self.plain else self._own(hidden)

    def logprobs(
        self, hidden_U: Tensor, target_U: Tensor, temperature: float = 1.0, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the log-probs (U,) of chosen tokens and, if ``entropy`` is set, entropies (U,), both in nats.

        Args:
            hidden_U: last hidden states (U, C), each at the position that predicts its token.
            target_U: ids (U,) of the chosen tokens.
            temperature: temperature by which the logits are divided, as in sampling.
            entropy: whether to compute the entropies of the distributions; otherwise None is returned for them.
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
        """Returns whether the logits are exactly the product of the hidden states and the output embedding.

        This holds if the head is a linear layer without bias, and the model changes neither the hidden states before
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
    """A module that replaces a model's transformer and returns its input as the last hidden states."""

    @property
    def decoder(self) -> _Given:
        """Returns the module itself, because some models use the attribute ``decoder`` of their transformer."""
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
