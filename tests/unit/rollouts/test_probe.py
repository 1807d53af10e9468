"""The probe accepts what is reproduced exactly, names what is not, and leaves the model as it was."""

from __future__ import annotations

import pytest
import torch
from tests.unit.random_models import small_config, small_model

from turnwise.errors import InputError
from turnwise.models.attention import backbone, use_tree_attention
from turnwise.models.logprobs import score
from turnwise.rollouts.probe import check_exact, probe, probe_backbone, probed_layers


def test_a_plain_decoder_is_exact_and_stays_as_it_was() -> None:
    model = use_tree_attention(small_model(small_config("llama")))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert probe(model) is None
    assert probe_backbone(model.model) is None
    assert torch.equal(torch.random.get_rng_state(), state)  # a probed run draws what it would have drawn
    after = model.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert model.config._attn_implementation == "turnwise_tree" and len(model.model.layers) == 4


@pytest.mark.parametrize("kind", ["bert", "bloom", "falcon"])
def test_what_is_not_reproduced_is_refused_in_one_line(kind: str) -> None:
    model = use_tree_attention(small_model(small_config(kind)))
    with pytest.raises(InputError) as told:
        check_exact(model, "policy.model=there")
    assert kind in str(told.value) and "\n" not in str(told.value)


def test_every_kind_of_layer_is_passed_and_no_more() -> None:
    model = small_model(small_config("llama", num_hidden_layers=6))
    layers = model.model.layers
    with probed_layers(model):
        assert len(backbone(model).layers) == model.config.num_hidden_layers == 2
    layers[3].self_attn.scaling = 0.5  # another kind
    with probed_layers(model):
        assert len(backbone(model).layers) == model.config.num_hidden_layers == 4
    assert len(layers) == model.config.num_hidden_layers == 6 and model.model.layers is layers


def test_roundings_above_the_limit_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = use_tree_attention(small_model(small_config("llama")).bfloat16())
    monkeypatch.setattr("turnwise.rollouts.probe.REDUCED", 1e-9)
    measured: list[torch.dtype] = []
    monkeypatch.setattr("turnwise.rollouts.probe.score", lambda m, p: measured.append(m.dtype) or score(m, p))
    assert probe(model) is None
    assert measured == [torch.bfloat16, torch.float32] and model.dtype == torch.bfloat16


def test_a_chunk_of_the_gated_delta_rule_ends_inside_the_tree() -> None:
    model = use_tree_attention(small_model(small_config("qwen3_5_text")))
    lengths: list[int] = []
    model.register_forward_pre_hook(lambda _, given, more: lengths.append(more["input_ids"].shape[1]), with_kwargs=True)
    assert probe(model) is None
    assert max(lengths) > 64
