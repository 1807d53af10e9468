"""Loads a policy: a Hugging Face causal LM and its tokenizer. Either LoRA adapters or all weights can be trained."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as hf_logging

from turnwise.errors import InputError
from turnwise.hub import ADAPTER, ADAPTER_CONFIG, check_adapter, check_length, check_model
from turnwise.models.attention import unwrapped, use_tree_attention
from turnwise.models.logprobs import Head

logger = logging.getLogger(__name__)


def weight_files(model: str | Path) -> list[Path]:
    """Returns the files of weights of a folder or GGUF file. A model that is named by a Hugging Face id has none."""
    path = Path(model)
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path] if path.is_file() else []


def check_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raises a ValueError that names the first weight with a NaN or an infinity."""
    for name, value in tensors:
        if not value.is_floating_point() or value.is_meta or not value.numel():
            continue
        wide = value if value.element_size() > 1 else value.to(torch.float32)  # aminmax refuses one-byte types
        if not all(map(math.isfinite, torch.aminmax(wide.detach()))):
            raise ValueError(f"{name} contains values that are not finite")


def plain_copy(model: Any, into: PreTrainedModel | None = None) -> PreTrainedModel:
    """Returns a copy of ``model`` in which LoRA adapters are merged into the weights. If ``into``, an earlier copy, is
    given, the weights are written into it and no new model is made.

    Raises:
        InputError: the architecture or its adapters cannot be copied.
    """
    base = unwrapped(model)
    try:
        return _copied(base, into)
    except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        raise InputError(
            f"no plain copy of {base.config.model_type}, with the LoRA adapter merged into the weights, can be made "
            f"({type(error).__name__}: {error}); set engine.copy=false to sample from the trained weights themselves"
        ) from error


def _copied(base: Any, into: PreTrainedModel | None) -> PreTrainedModel:
    if into is None:
        with torch.device("meta"):
            into = type(base)(base.config)
        into = into.to_empty(device=next(base.parameters()).device).to(next(base.parameters()).dtype)
        for name, buffer in base.named_buffers():  # buffers, such as rotary frequencies, are not in the state dict
            owner, _, leaf = name.replace("base_layer.", "").rpartition(".")
            into.get_submodule(owner).register_buffer(leaf, buffer.detach().clone(), persistent=False)
        for name, module in base.named_modules():  # rotary frequencies must stay fixed (``models.attention.fix_rope``)
            if hasattr(module, "rope_type"):
                into.get_submodule(name).rope_type = module.rope_type
        into.tie_weights()
        into.requires_grad_(False).eval()
    with torch.no_grad():
        targets = dict(into.named_parameters())
        for path, value in base.named_parameters():
            # `base_layer.` may occur several times, since peft wraps an expert module once per parameter
            plain = targets.get(path.replace("base_layer.", ""))
            if plain is not None:
                plain.copy_(_whole(value))
        for name, module in base.named_modules():
            for adapter in module.active_adapters if hasattr(module, "get_delta_weight") else ():
                if adapter in module.lora_A:
                    adapted = f"{name.replace('.base_layer', '')}.{getattr(module, 'parameter_name', 'weight')}"
                    targets[adapted].add_(_whole(module.get_delta_weight(adapter)))
    return into


def _whole(value: torch.Tensor) -> torch.Tensor:
    """All processes that hold a shard of the weight must call this together."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def adapter_off(model: Any) -> AbstractContextManager[None]:
    """A context manager that switches the LoRA adapter off. In it, the model is the reference policy pi_0."""
    if not hasattr(model, "disable_adapter"):
        raise ValueError(
            "a policy without LoRA contains no reference policy; set loss.kl_beta=0 or policy.lora.r above 0"
        )
    return model.disable_adapter()


def load_policy(
    model: str | Path,
    dtype: str = "float32",
    rank: int = 0,
    alpha: float = 0.0,
    dropout: float = 0.0,
    seed: int = 0,
    start: str | Path | None = None,
    longest: int | None = None,
) -> tuple[Any, Any]:
    """Loads a causal LM, switches it to tree attention, and returns the model and its tokenizer.

    Args:
        model: a Hugging Face id, a folder, or a GGUF file, whose weights are dequantised. Weights of a folder are read
            only from safetensors, and no remote code is run.
        dtype: data type of the weights: float32, bfloat16 or float16.
        rank: rank of LoRA adapters on every linear layer except the head; 0: all weights are trained.
        alpha, dropout: LoRA's alpha and its dropout probability.
        seed: random seed of the adapter's initial weights.
        start: folder of an adapter that is merged into the weights first, such as the adapter of a finished run.
        longest: number of tokens of the longest path through a tree; None: no path is longer than the context length of
            the model's pretraining.

    Raises:
        InputError: the model or adapter does not exist or cannot be used.
    """
    policy, tokenizer = _load(AutoModelForCausalLM, model, dtype, "policy.model")
    check_length(policy.config.to_dict(), longest or 0, f"policy.model={model}")
    if start is not None:
        policy = _merged(policy, model, Path(start))
    with _named(f"policy.model={model}"):
        use_tree_attention(policy, longest)
        Head(policy)
    if rank == 0:
        return policy, tokenizer
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            adapted = with_adapter(policy, rank, alpha, dropout)
        except (AttributeError, KeyError, NotImplementedError, TypeError, ValueError) as error:
            raise InputError(
                f"policy.model={model}: LoRA cannot be used with this architecture ({_first_line(error)}); set "
                "policy.lora.r=0 to train all weights"
            ) from error
    return adapted, tokenizer


@contextmanager
def _named(named: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InputError(f"{named}: {error}") from error


def _merged(policy: Any, model: str | Path, adapter: Path) -> Any:
    try:
        check_adapter(adapter, model)
        adapted = PeftModel.from_pretrained(policy, adapter)
        with safe_open(adapter / ADAPTER, "pt") as stream:
            strange = set(stream.keys()) ^ get_peft_model_state_dict(adapted).keys()
        if strange:  # weights of other layers, which peft would silently ignore
            raise ValueError(f"{min(strange)} and {len(strange) - 1} more exist only in the adapter or in the model")
        merged = adapted.merge_and_unload()
        check_finite(merged.named_parameters())
    except (MemoryError, torch.OutOfMemoryError, InputError):
        raise
    except Exception as error:  # a broken configuration can make peft raise anything
        raise InputError(
            f"policy.start={adapter}: this adapter cannot be merged into policy.model={model} ({_first_line(error)})"
        ) from error
    return merged


def save_adapter(model: Any, folder: Path, start: str | Path | None = None) -> None:
    """Writes the LoRA adapter of ``model``, or of the gathering wrapper of a sharded one, to ``folder``.

    If the weights under it are those of a base model with the adapter ``start`` merged, the written adapter is the sum
    of both and belongs to that base model. Its rank is the sum of both ranks: s_1 B_1 A_1 + s_2 B_2 A_2 = [s_1 B_1, s_2
    B_2] [A_1; A_2]. (peft's ``add_weighted_adapter`` needs both adapters on one unmerged model.)
    """
    model.save_pretrained(folder, safe_serialization=True)
    if start is None:
        return
    places = (Path(start), folder)
    first, second = (load_file(place / ADAPTER) for place in places)
    abouts = [json.loads((place / ADAPTER_CONFIG).read_text(encoding="utf-8")) for place in places]
    scale, own_scale = (float(about["lora_alpha"]) / float(about["r"]) for about in abouts)
    total = {}
    for name, weight in second.items():
        if name.endswith("lora_A.weight"):
            total[name] = torch.cat([first[name], weight])
            rank = len(total[name])
        else:
            total[name] = torch.cat([first[name] * scale, weight * own_scale], dim=1)
    save_file(total, folder / ADAPTER, {"format": "pt"})
    summed = {**abouts[1], "r": rank, "lora_alpha": rank}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(summed, indent=2), encoding="utf-8")


# last parts of layers' names that peft reads as names of experts or routers in models with a mixture of experts
_OF_EXPERTS = {"gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "experts", "router"}


def with_adapter(policy: Any, rank: int, alpha: float, dropout: float, empty: bool = False) -> Any:
    """Returns ``policy`` with LoRA adapters on all linear layers except the head.

    In a model with a mixture of experts, feed-forward layers have no adapters. vLLM does not apply peft's adapters of
    fused experts as peft does: for Qwen3's mixture of experts it takes their rows in another order, so the server would
    sample from other weights. Adapters of all experts would also have as many parameters as a small model.

    If ``empty`` is set, the adapters are created on the meta device, without memory.
    """
    config = LoraConfig(
        r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    names = [name.split(".") for name, _ in policy.named_modules()]
    if above := {name[-2] for name in names if name[-1] == "experts" and len(name) > 1}:
        # in JetMoE an attention layer holds experts too; its projection of keys and values is no expert
        feed_forward = {name for name in above if "attention" not in name}
        head, left_out = policy.get_output_embeddings(), feed_forward | _OF_EXPERTS
        config.target_modules = {
            name
            for name, module in policy.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not head and left_out.isdisjoint(name.split("."))
        }
    if unlike := [name for name, module in policy.named_modules() if _unlike_linear(module)]:
        config.exclude_modules = unlike
    return get_peft_model(policy, config, low_cpu_mem_usage=empty)


def _unlike_linear(module: torch.nn.Module) -> bool:
    own = type(module).__module__.startswith("transformers.models.")
    return own and isinstance(module, torch.nn.Linear) and type(module).forward is not torch.nn.Linear.forward


def load_backbone(model: str | Path, dtype: str = "float32", layers: int | None = None) -> tuple[Any, Any]:
    """Loads a transformer without its head, for the success predictor, and its tokenizer. Only the lowest ``layers``
    layers are kept; None: all of them.

    Raises:
        InputError: the model does not exist or cannot be used.
    """
    backbone, tokenizer = _load(AutoModel, model, dtype, "predictor.model")
    with _named(f"predictor.model={model}"):
        use_tree_attention(backbone)
    if layers is not None:
        if not isinstance(getattr(backbone, "layers", None), torch.nn.ModuleList) or layers > len(backbone.layers):
            raise InputError(
                f"predictor.layers={layers}: {layers} of the {backbone.config.num_hidden_layers} layers of {model} "
                "cannot be selected; give a smaller number, or null to keep all layers (some models allow only null)"
            )
        backbone.layers = backbone.layers[:layers]
        backbone.config.num_hidden_layers = layers
    return backbone, tokenizer


def _load(kind: Any, model: str | Path, dtype: str, key: str) -> tuple[Any, Any]:
    check_model(model, key)
    source: str | Path = model
    options: dict[str, Any] = {"trust_remote_code": False}  # set explicitly: transformers would ask on the terminal
    if str(model).endswith(".gguf"):
        source, options["gguf_file"] = Path(model).parent, Path(model).name
    try:
        with _quiet():
            tokenizer = AutoTokenizer.from_pretrained(source, **options)
            weights, info = kind.from_pretrained(
                source, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True, **options
            )
        if "gguf_file" in options:  # the weights are float now, but a model that is marked as quantised cannot be saved
            del weights.config.quantization_config
            weights.hf_quantizer, weights.is_quantized = None, False
        if missing := sorted(info["missing_keys"]):  # transformers would fill them with random values
            raise ValueError(f"{missing[0]} and {len(missing) - 1} more tensors are missing from the model's files")
        check_finite(weights.named_parameters())
        rows, highest = weights.get_input_embeddings().weight.shape[0], max(tokenizer.get_vocab().values(), default=-1)
        if "door" not in tokenizer.decode(tokenizer.encode("open door", add_special_tokens=False)):
            raise ValueError("the tokenizer's files are missing or damaged: it does not give back a plain text")
        if not 0 <= highest < rows:
            raise ValueError(f"the tokenizer has token ids up to {highest}, but the embedding has only {rows} rows")
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a broken file can make the libraries raise anything
        raise InputError(
            f"{key}={model}: {_first_line(error)}. Give the id of a model on the Hugging Face hub, a folder that "
            "contains config.json, model.safetensors and a tokenizer, or a whole GGUF file"
        ) from error
    if left_out := sorted(info["unexpected_keys"]):
        ignored = f"{left_out[0]} and {len(left_out) - 1} more tensors that the model does not use; they are ignored"
        logger.warning("%s=%s: the model's files contain %s", key, model, ignored)
    return weights, tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    hf_logging.disable_progress_bar()
    before = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(before)


def _first_line(error: Exception) -> str:
    if "ignore_mismatched_sizes" in str(error):
        return "tensors in its files do not have the shapes that its config.json requires"
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else "") if isinstance(error, OSError | ValueError) else repr(error)[:300]
