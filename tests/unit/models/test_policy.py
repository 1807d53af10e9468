"""Adapters in the weights: a plain copy of whatever layers they stand on, and a policy that starts from one."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from tests.unit.random_models import small_config, small_model
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig

from turnwise.errors import InputError
from turnwise.models.policy import load_policy, plain_copy, save_adapter, with_adapter
from turnwise.shipped import tiny_path

DENSE: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "tie_word_embeddings": False,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3", "ernie4_5_moe", "qwen2_moe", "jetmoe"])
def test_experts_routers_and_shared_experts_have_no_adapter(kind: str) -> None:
    adapted = with_adapter(small_model(small_config(kind)), rank=4, alpha=8, dropout=0.0)
    layers = {name.split(".lora_")[0] for name, _ in adapted.named_parameters() if ".lora_" in name}
    assert layers and all(".self_attn." in name or name.endswith(".self_attention.kv_proj") for name in layers)
    assert not adapted.peft_config["default"].rank_pattern  # a server that holds adapters of this rank can load it


@pytest.mark.parametrize("config", [Qwen3Config(**DENSE), Qwen3MoeConfig(**DENSE, **EXPERTS)], ids=["dense", "experts"])
def test_a_plain_copy_has_the_adapters_in_its_weights(config: Any) -> None:
    torch.manual_seed(0)
    model = with_adapter(AutoModelForCausalLM.from_config(config), rank=4, alpha=8, dropout=0.0).eval()
    ids = torch.randint(0, 61, (2, 12))
    copy = None
    for change in (0.1, 0.3):  # the second time into the copy that is there
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, change)
        copy = plain_copy(model, into=copy)
        with torch.no_grad(), model.disable_adapter():
            base = model(input_ids=ids).logits
        with torch.no_grad():
            wanted, found = model(input_ids=ids).logits, copy(input_ids=ids).logits
        assert torch.allclose(found, wanted, atol=1e-4)
        assert not torch.allclose(wanted, base, atol=1e-2)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter on the shipped policy that says something else."""
    folder = tmp_path_factory.mktemp("run") / "adapter"
    model, _ = load_policy(tiny_path(), rank=4, alpha=8)
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.1)
    model.save_pretrained(folder)
    return folder


def test_a_policy_that_starts_from_an_adapter_is_the_adapted_one(adapter: Path) -> None:
    ids = torch.arange(20)[None]
    plain, _ = load_policy(tiny_path())
    start, _ = load_policy(tiny_path(), start=adapter)
    again, _ = load_policy(tiny_path(), rank=4, alpha=8, start=adapter)  # a new adapter is empty
    with torch.no_grad():
        wanted = PeftModel.from_pretrained(load_policy(tiny_path())[0], adapter)(input_ids=ids).logits
        found, other, base = (model(input_ids=ids).logits for model in (start, again, plain))
    assert torch.allclose(found, wanted, atol=1e-4) and torch.allclose(other, wanted, atol=1e-4)
    assert not torch.allclose(base, wanted, atol=1e-2)
    assert not hasattr(start, "peft_config") or not start.peft_config


def test_the_second_adapter_contains_the_first(adapter: Path, tmp_path: Path) -> None:
    model, _ = load_policy(tiny_path(), rank=2, alpha=6, start=adapter)
    torch.manual_seed(2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(0, 0.1)
    save_adapter(model, tmp_path / "sum", adapter)
    again, _ = load_policy(tiny_path(), start=tmp_path / "sum")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.allclose(model(input_ids=ids).logits, again(input_ids=ids).logits, atol=1e-4)
    about = json.loads((tmp_path / "sum" / "adapter_config.json").read_text())
    assert about["r"] == about["lora_alpha"] == 4 + 2


@pytest.mark.extra("gguf")
def test_a_file_that_is_no_whole_gguf_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(InputError, match=r"policy\.model=.*model\.gguf") as caught:
        load_policy(file)
    assert "\n" not in str(caught.value)


Damage = Callable[[Path], object]
DOWN, WHOLE = "model.layers.0.mlp.down_proj.weight", "model.safetensors"


def tensors(change: Callable[[dict[str, torch.Tensor]], object], name: str = WHOLE) -> Damage:
    def damage(folder: Path) -> None:
        weights = load_file(folder / name)
        change(weights)
        save_file(weights, folder / name, metadata={"format": "pt"})

    return damage


def about(name: str = "config.json", **changes: Any) -> Damage:
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))


def pickled(folder: Path) -> None:
    """A pickle in the place of the weights, which leaves a trace if it is opened."""

    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (folder / "ran",))

    (folder / WHOLE).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))


MODELS: dict[str, Damage] = {
    "NaN": tensors(lambda weights: weights[DOWN].view(-1)[3].fill_(float("nan"))),
    "infinity": tensors(lambda weights: weights["model.embed_tokens.weight"].view(-1)[3].fill_(-float("inf"))),
    "missing tensor": tensors(lambda weights: weights.pop(DOWN)),
    "other shape": tensors(lambda weights: weights.update({DOWN: torch.zeros(3, 3)})),
    "cut": lambda folder: (folder / WHOLE).write_bytes((folder / WHOLE).read_bytes()[:5000]),
    "a pickle": pickled,
    "no tokenizer": lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
    "another vocabulary": tensors(
        lambda weights: weights.update({"model.embed_tokens.weight": weights["model.embed_tokens.weight"][:40]})
    ),
    "a list as config": lambda folder: (folder / "config.json").write_text("[1]"),
    "an adapter": lambda folder: (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "x"}'),
}
ABOUT, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ADAPTERS: dict[str, Damage] = {
    "NaN": tensors(lambda weights: weights[min(weights)].fill_(float("nan")), WEIGHTS),
    "missing tensor": tensors(lambda weights: weights.pop(min(weights)), WEIGHTS),
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "alpha infinite": about(ABOUT, lora_alpha=float("inf")),
    "a start that changes the base": about(ABOUT, init_lora_weights="pissa_niter_16"),
    "another kind": about(ABOUT, peft_type="LOHA"),
    "code": about(ABOUT, megatron_config={"a": 1}, megatron_core="antigravity"),
    "another base": about(ABOUT, base_model_name_or_path="org/Other-4B"),
    "no configuration": lambda folder: (folder / ABOUT).unlink(),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_broken_model_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_path(), tmp_path / "copy"))
    MODELS[name](folder)
    with pytest.raises(InputError, match=r"policy\.model") as refusal:
        load_policy(folder)
    assert "\n" not in str(refusal.value) and not (folder / "ran").exists()


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_broken_adapter_is_refused_in_one_line(name: str, adapter: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    ADAPTERS[name](folder)
    with pytest.raises(InputError, match=r"policy\.start") as refusal:
        load_policy(tiny_path(), start=folder)
    assert "\n" not in str(refusal.value)


def test_no_code_of_a_models_folder_is_run(tmp_path: Path) -> None:
    """Left to itself, transformers asks a terminal whether to run it."""
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own", "AutoTokenizer": ["own.Own", None]}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": own}))
    with pytest.raises(InputError, match="model="):
        load_policy(str(tmp_path))
    assert not (tmp_path / "ran").exists()
