"""Models and adapters that are not what they claim to be: one message each, and none is trained."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.models.damage import DOWN, Damage, config, cut, dropout, index, put, split, tensors, twins, vocabulary

from turnwise.models.check_weights import check_finite, check_norms
from turnwise.models.policy import PolicyError, load_backbone, load_policy
from turnwise.models.random_models import small_config, small_model
from turnwise.models.shipped import tiny_path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_path(), tmp_path / "copy"))


MODELS: dict[str, tuple[Damage, str]] = {
    "NaN": (put(DOWN, float("nan")), DOWN),
    "infinity": (put("model.embed_tokens.weight", -float("inf")), "model.embed_tokens.weight"),
    "missing tensor": (tensors(lambda found: found.pop(DOWN)), DOWN),
    "missing head": (config(tie_word_embeddings=False), "lm_head"),
    "other shape": (tensors(lambda found: found.update({DOWN: torch.zeros(3, 3)})), "shapes"),
    "cut": (cut("model.safetensors", 5000), r"model\.safetensors"),
    "empty": (cut("model.safetensors", 0), r"model\.safetensors"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), r"model\.safetensors"),
    "pickle in the index": (index("pytorch_model.bin", pickled=True), r"pytorch_model\.bin"),
    "outside the folder": (index("../outside.safetensors"), "outside"),
    "index is no object": (
        lambda folder: (
            index("a.safetensors")(folder) or ((folder / "model.safetensors.index.json").write_text("[]") and None)
        ),
        r"model\.safetensors\.index\.json",
    ),
    "file of its own": (config(transformers_weights="other.safetensors"), "transformers_weights"),
    "a million layers": (config(num_hidden_layers=10**6), "num_hidden_layers"),
    "an enormous number of layers": (config(num_hidden_layers=10**18), "num_hidden_layers"),
    "another architecture": (config(model_type="llama", architectures=["LlamaForCausalLM"]), "architecture"),
    "no epsilon": (config(rms_norm_eps=float("nan")), "rms_norm_eps"),
    "no rotary base": (config(rope_parameters={"rope_type": "default", "rope_theta": 0}), "rope_theta"),
    "whole numbers": (
        tensors(lambda found: found.update({name: value.to(torch.int8) for name, value in found.items()})),
        "I8",
    ),
    "eight bits without a quantisation": (
        tensors(lambda found: found.update({DOWN: found[DOWN].to(torch.float8_e4m3fn)})),
        "F8_",
    ),
    "a head beside a tied one": (
        tensors(lambda found: found.update({"lm_head.weight": found["model.embed_tokens.weight"] + 1})),
        "tie_word_embeddings",
    ),
    "a tensor in two files": (split(DOWN, twice=True), DOWN),
    "a tensor in another file than the index says": (split(DOWN, twice=False), DOWN),
    "a weight beyond all others": (put(DOWN, 1e20), DOWN),
    "rotary bands in the wrong order": (
        config(
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8,
                "low_freq_factor": 4,
                "high_freq_factor": 1,
                "original_max_position_embeddings": 128,
            }
        ),
        "low_freq_factor",
    ),
    "two added tokens of one id": (twins, "the same id"),
    "no positions": (config(max_position_embeddings=0), "max_position_embeddings"),
    "a pipe in the place of a file": (
        lambda folder: (folder / "tokenizer_config.json").unlink() or os.mkfifo(folder / "tokenizer_config.json"),
        "tokenizer_config",
    ),
    "a tokenizer that draws": (dropout, "dropout"),
    "a tokenizer that changes digits": (
        config("tokenizer.json", normalizer={"type": "Replace", "pattern": {"String": "3"}, "content": "0"}),
        "tokenizer",
    ),
    "a vocabulary beyond memory": (config(vocab_size=10**12), "shapes"),
    "negative size": (config(hidden_size=-1), "copy"),
    "config is a list": (lambda folder: (folder / "config.json").write_text("[1]") and None, r"config\.json"),
    "config is cut": (cut("config.json", 40), r"config\.json"),
    "tokenizer is cut": (cut("tokenizer.json", 400), "copy"),
    "wrong vocabulary": (vocabulary, "1000000"),
    "an epsilon beyond use": (config(rms_norm_eps=1e30), "rms_norm_eps"),
    "an epsilon in words": (config(rms_norm_eps="small"), "rms_norm_eps"),
    "a rotary factor of nothing": (
        config(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 0}),
        "factor",
    ),
    "dropout of everything": (config(attention_dropout=1.0), "attention_dropout"),
    "an unknown quantisation": (config(quantization_config={"quant_method": "banana"}), "quant_method"),
    "never filled": (
        tensors(lambda found: [value.zero_() for value in found.values()]),
        "values of the embeddings are equal",
    ),
    "a norm of zeros": (tensors(lambda found: found["model.norm.weight"].zero_()), r"model\.norm\.weight"),
    "a norm of zeros in a layer": (
        tensors(lambda found: found["model.layers.1.input_layernorm.weight"].zero_()),
        r"layers\.1\.input_layernorm\.weight",
    ),
    "an end of turn that is a word": (config("tokenizer_config.json", eos_token="door"), "door"),
    "a pattern that fails where it nearly fits": (
        config(
            "tokenizer.json",
            normalizer={"type": "Replace", "pattern": {"Regex": "(?:[a-z]|[a-z0-9])*="}, "content": "="},
        ),
        "pattern",
    ),
    "no tokenizer": (lambda folder: [path.unlink() for path in folder.glob("tokenizer*")] and None, "tokenizer"),
    "a tokenizer that drops all": (
        config("tokenizer.json", normalizer={"type": "Replace", "pattern": {"Regex": "."}, "content": ""}),
        "tokenizer",
    ),
    "a pattern that fails on long texts": (
        config("tokenizer.json", normalizer={"type": "Replace", "pattern": {"Regex": r"(d+)+$"}, "content": "d"}),
        "pattern",
    ),
    "a pattern that takes for ever": (
        config("tokenizer.json", normalizer={"type": "Replace", "pattern": {"Regex": "x*x*y|x"}, "content": "x"}),
        "pattern",
    ),
    "an end of turn beyond the vocabulary": (config(eos_token_id=10**6), "eos_token_id"),
    "one of several ends": (config("generation_config.json", eos_token_id=[1, 10**6]), "eos_token_id"),
    "a padding of its own": (config("generation_config.json", pad_token_id=-7), "pad_token_id"),
    "a beginning in words": (config("generation_config.json", bos_token_id="<s>"), "bos_token_id"),
    "sliding windows": (
        config(use_sliding_window=True, sliding_window=8, layer_types=["sliding_attention"] * 9),
        "policy.model",
    ),
    "control characters": (tensors(lambda found: found.update({"\x1b[2J": torch.zeros(1)})), r"x1b\[2J"),
    "an adapter": (
        lambda folder: (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}') and None,
        r"policy\.start",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_broken_model_is_one_message(name: str, model: Path) -> None:
    damage, said = MODELS[name]
    damage(model)
    began = time.process_time()
    with pytest.raises(PolicyError, match=said) as caught:
        load_policy(model)
    assert "\n" not in str(caught.value) and time.process_time() - began < 10


def test_no_pickle_is_opened(model: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (model / "ran",))

    index("pytorch_model.bin", pickled=True)(model)
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(PolicyError):
        load_policy(model)
    assert not (model / "ran").exists()


def test_what_is_whole_loads_tied_split_or_without_its_head(model: Path) -> None:
    wanted = load_policy(tiny_path())[0].state_dict()
    index("part-1.safetensors")(model)
    found = load_policy(model)[0].state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    load_backbone(model)


def test_a_norm_that_scales_by_one_more_than_its_weight_may_hold_zeros() -> None:
    model = small_model(small_config("gemma2"))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.zero_()
    check_norms(model.named_modules())


def test_what_a_model_has_no_place_for_is_named(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors(lambda found: found.update(strange=torch.zeros(3)))(model)
    load_policy(model)
    assert "strange" in caplog.text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e5m2])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_value_among_many_is_found(dtype: torch.dtype, value: float) -> None:
    weights = torch.linspace(-3, 3, 10_007).to(dtype)
    check_finite([("w", weights), ("ids", torch.arange(3)), ("none", torch.empty(0))])
    weights[5_003] = value
    with pytest.raises(ValueError, match="w contains"):
        check_finite([("w", weights)])
