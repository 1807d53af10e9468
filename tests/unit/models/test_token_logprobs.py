from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.random_models import small_config, small_model
from torch.utils._python_dispatch import TorchDispatchMode

from turnwise.models.attention import backbone
from turnwise.models.logprobs import Head, selected_logprobs_and_entropy

# -- token logprobs ----------------------------------------------------------------------------------------------------


def plain(hidden, weight, targets, temperature):
    logs = torch.log_softmax(hidden @ weight.T / temperature, -1)
    return logs.gather(-1, targets[..., None]).squeeze(-1), -(logs.exp() * logs).sum(-1)


def test_logprob_and_entropy_by_hand() -> None:
    # logits 0 and ln 9 at temperature 2 are 0 and ln 3: probabilities 1/4 and 3/4
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [math.log(9)]])
    logprobs, entropy = selected_logprobs_and_entropy(hidden, weight, torch.tensor([1]), temperature=2.0)
    assert logprobs.item() == pytest.approx(math.log(3 / 4))
    assert entropy.item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 7), st.integers(1, 9), st.integers(1, 8), st.floats(0.3, 2.0), st.integers(0, 99))
def test_equals_the_plain_computation_with_its_gradients(rows, vocabulary, chunk, temperature, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, 4, dtype=torch.double, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, 4, dtype=torch.double, generator=generator, requires_grad=True)
    targets = torch.randint(0, vocabulary, (rows,), generator=generator)
    pull = torch.randn(2, rows, dtype=torch.double, generator=generator)

    ours = selected_logprobs_and_entropy(hidden, weight, targets, temperature, chunk)
    theirs = plain(hidden, weight, targets, temperature)
    torch.testing.assert_close(ours, theirs)
    grads = [
        torch.autograd.grad(sum((p * v).sum() for p, v in zip(pull, values, strict=True)), (hidden, weight))
        for values in (ours, theirs)
    ]
    torch.testing.assert_close(*grads)
    again = selected_logprobs_and_entropy(hidden, weight, targets, temperature, chunk)
    entropy = plain(hidden, weight, targets, temperature)
    torch.testing.assert_close(*(torch.autograd.grad((pull[1] * h).sum(), hidden)[0] for h in (again[1], entropy[1])))
    without = selected_logprobs_and_entropy(hidden, weight, targets, temperature, chunk, entropy=False)[0]
    torch.testing.assert_close(without, theirs[0])
    torch.testing.assert_close(
        torch.autograd.grad((pull[0] * without).sum(), (hidden, weight)),
        torch.autograd.grad((pull[0] * plain(hidden, weight, targets, temperature)[0]).sum(), (hidden, weight)),
    )


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


def test_logits_of_all_positions_never_stand_in_memory() -> None:
    rows, size, vocabulary, chunk = 64, 4, 100, 8
    hidden, weight = torch.randn(rows, size, requires_grad=True), torch.randn(vocabulary, size, requires_grad=True)
    targets = torch.randint(0, vocabulary, (rows,))
    with LargestTensor() as largest:
        logprobs, entropy = selected_logprobs_and_entropy(hidden, weight, targets, chunk=chunk)
        (logprobs + entropy).sum().backward()
    assert largest.elements == chunk * vocabulary
    with LargestTensor() as largest:
        plain(hidden, weight, targets, 1.0)
    assert largest.elements == rows * vocabulary


def test_bfloat16_rows_get_float32_logprobs_also_under_autocast() -> None:
    hidden, weight = torch.randn(6, 8), torch.randn(11, 8)
    targets = torch.randint(0, 11, (6,))
    rows = hidden.bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = selected_logprobs_and_entropy(rows, weight, targets, entropy=False)[0]
        full = selected_logprobs_and_entropy(hidden, weight, targets, entropy=False)[0]
    assert cast.dtype == torch.float32
    torch.testing.assert_close(full, plain(hidden, weight, targets, 1.0)[0])  # autocast does not round float32 rows
    torch.testing.assert_close(cast, full, atol=0.1, rtol=0.05)
    cast.sum().backward()
    assert rows.grad.dtype == torch.bfloat16


# -- head --------------------------------------------------------------------------------------------------------------

PLAIN = {"llama": True, "gpt2": True, "granite": False, "cohere": False, "gemma2": False, "phi": False, "opt": True}
SCALES: dict[str, dict[str, Any]] = {"granite": {"logits_scaling": 8.0}}


@pytest.mark.parametrize("kind", PLAIN)
def test_logits_are_the_models_own(kind: str) -> None:
    model = small_model(small_config(kind, **SCALES.get(kind, {})))
    ids = torch.arange(3, 23)[None]
    hidden = backbone(model)(input_ids=ids, use_cache=False).last_hidden_state[0]
    head = Head(model)
    assert head.plain == PLAIN[kind]
    torch.testing.assert_close(head(hidden), model(ids, use_cache=False).logits[0], rtol=1e-5, atol=1e-5)


def test_logits_of_packed_weights_are_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.models.fast_llama.PACKED", (0, 1 << 30))
    model, hidden = small_model(small_config("llama")), torch.randn(20, 64)
    packed, plain = Head(model, copies=1), Head(model)
    with torch.inference_mode():
        assert packed._packed is not None and plain._packed is None
        torch.testing.assert_close(packed(hidden), plain(hidden), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("entropy", [False, True])
def test_chosen_logprobs_of_a_scaled_and_capped_head_learn(entropy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.models.logprobs.CHUNK", 7)  # parts of unlike length
    model = small_model(small_config("gemma2"))
    hidden = torch.randn(20, 64, requires_grad=True)
    target = torch.arange(20)
    head = Head(model)
    logs = (head._own(hidden) / 0.7).log_softmax(-1)
    wanted = logs.gather(1, target[:, None])[:, 0]
    found, entropies = head.logprobs(hidden, target, 0.7, entropy)
    torch.testing.assert_close(found, wanted)
    for x in (hidden, head.weight):
        mine, own = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in (found, wanted))
        torch.testing.assert_close(mine, own)
    if entropy:
        torch.testing.assert_close(entropies, -(logs.exp() * logs).sum(-1))
    else:
        assert entropies is None
