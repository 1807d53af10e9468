"""Logits by the model's own code over given hidden states."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.unit.random_models import small_config, small_model

from turnwise.models.attention import backbone
from turnwise.models.head import Head

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


@pytest.mark.parametrize("entropy", [False, True])
def test_chosen_logprobs_of_a_scaled_and_capped_head_learn(entropy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.models.head.CHUNK", 7)  # parts of unlike length
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


def test_the_weights_are_read_at_every_call() -> None:
    model = small_model(small_config("granite", logits_scaling=8.0))
    head, hidden = Head(model), torch.randn(2, 64)
    before = head(hidden)
    with torch.no_grad():
        head.weight.mul_(2)
    torch.testing.assert_close(head(hidden), 2 * before)
