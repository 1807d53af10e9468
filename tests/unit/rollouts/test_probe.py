"""The probe accepts what is reproduced exactly, names what is not, and leaves the model as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from turnwise.errors import InputError
from turnwise.models.attention import backbone, use_tree_attention
from turnwise.models.packed_logprobs import score
from turnwise.models.random_models import small_config, small_model
from turnwise.models.shrink_temporarily import cut, enough, narrowed
from turnwise.rollouts.probe import probe, probe_backbone
from turnwise.training.exactness import check_exact


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
        check_exact(model, "policy.model=there", tmp_path)
    assert kind in str(told.value) and "\n" not in str(told.value)
    assert not list(tmp_path.rglob("*.json"))  # a refusal is not kept


def test_an_answer_is_kept_by_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("turnwise.rollouts.probe._difference", asked.append)
    model = use_tree_attention(small_model(small_config("llama")))
    for _ in range(2):
        check_exact(model, "policy.model=there", tmp_path)
    assert len(asked) == 1
    other = use_tree_attention(small_model(small_config("llama", rms_norm_eps=1e-4)))
    check_exact(other, "policy.model=there", tmp_path)
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


def test_a_small_vocabulary_is_put_back_whatever_happens() -> None:
    model = small_model(small_config("llama", tie_word_embeddings=True))
    weight = model.lm_head.weight
    with narrowed(model, 64) as fewer:
        assert fewer and len(model.lm_head.weight) == len(model.model.embed_tokens.weight) == 64
    assert model.lm_head.weight is weight
    with pytest.raises(IndexError), narrowed(model, 64):
        model(input_ids=torch.tensor([[64]]))
    assert model.lm_head.weight is weight is model.model.embed_tokens.weight
    assert model.model.embed_tokens.padding_idx == model.config.pad_token_id
    with narrowed(model, len(weight)) as fewer:
        assert not fewer and model.lm_head.weight is weight


class Raised(LlamaForCausalLM):
    """Raises the logits of a part of the vocabulary that a small one does not hold."""

    def forward(self, *given: Any, **more: Any) -> Any:
        out = super().forward(*given, **more)
        out.logits[..., 64:] += 1.0
        return out


class Whole(LlamaForCausalLM):
    """Adds a number for each token of the whole vocabulary, and fails with fewer."""

    def forward(self, *given: Any, **more: Any) -> Any:
        out = super().forward(*given, **more)
        out.logits = out.logits + torch.arange(self.config.vocab_size) / 100
        return out


def test_a_head_is_compared_over_the_whole_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.rollouts.probe.VOCABULARY", 64)
    model: Any = use_tree_attention(Raised(small_config("llama")).eval())
    assert probe(model) is None
    monkeypatch.setattr("turnwise.models.head._known", {model: True})  # as if nothing came behind the product
    found = probe(model)
    assert found is not None and found.where == "head"


def test_a_head_that_needs_the_whole_vocabulary_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.rollouts.probe.VOCABULARY", 64)
    model: Any = use_tree_attention(Whole(small_config("llama")).eval())
    assert probe(model) is None


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
