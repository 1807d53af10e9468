"""The probe accepts what is reproduced exactly, names what is not, and leaves the model as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from turnwise.errors import InputError
from turnwise.models.attention import backbone, use_tree_attention
from turnwise.models.cut import cut, enough
from turnwise.models.families import small_config, small_model
from turnwise.rollouts.probe import probe, probe_backbone
from turnwise.training.exactness import check_policy


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
def test_what_is_not_reproduced_is_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    model = use_tree_attention(small_model(small_config(kind)))
    with pytest.raises(InputError) as told:
        check_policy(model, "policy.model=there", tmp_path)
    assert kind in str(told.value) and "\n" not in str(told.value)
    assert not list(tmp_path.rglob("*.json"))  # a refusal is not kept


def test_an_answer_is_kept_by_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("turnwise.rollouts.probe._difference", asked.append)
    model = use_tree_attention(small_model(small_config("llama")))
    for _ in range(2):
        check_policy(model, "policy.model=there", tmp_path)
    assert len(asked) == 1
    other = use_tree_attention(small_model(small_config("llama", rms_norm_eps=1e-4)))
    check_policy(other, "policy.model=there", tmp_path)
    assert len(asked) == 2


def test_every_kind_of_layer_is_passed_and_no_more() -> None:
    model = small_model(small_config("llama", num_hidden_layers=6))
    layers = model.model.layers
    assert enough(layers) == 2
    layers[3].self_attn.scaling = 0.5  # another kind
    assert enough(layers) == 4
    with cut(model, 2):
        assert len(backbone(model).layers) == model.config.num_hidden_layers == 4  # type: ignore[arg-type]
    assert len(layers) == model.config.num_hidden_layers == 6 and model.model.layers is layers
