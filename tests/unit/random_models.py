"""Builds small random models of the architectures in transformers, and compares a packed tree with its paths.

Sizes in the default configurations are recognised by the names of their keys, so no list of architectures is needed.
The random weights have a large spread, so that a wrong mask, position or head changes every log-prob.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from turnwise.engines.tree_engine import TreeEngine
from turnwise.models.attention import unwrapped
from turnwise.models.logprobs import score
from turnwise.rollouts.probe import LAST, SEEN, WRITTEN, ProbeTree, probe_own_attention, sampled_probe_turns

MOST = 30_000_000  # greatest number of parameters; in a larger model, sizes with unknown names were not reduced
LAYERS = 4
MEMORY = -3.0  # natural log of the approximate fraction of its state that a recurrent layer forgets per token
_SIZES = (  # pattern of a configuration key, and the value in a small model; the first matching pattern is used
    (r"^(num_hidden_layers|n_layers?|num_layers|decoder_layers|encoder_layers|depth)$", LAYERS),
    (r"^(num_attention_heads|n_heads?|num_heads|(en|de)coder_attention_heads)$", 4),
    (r"^(hidden_size|n_embd|d_model|dim|embedding_size|hidden_dim|lru_width|word_embed_proj_dim)$", 64),
    (r"^(head_dim|attention_head_dim|v_head_dim|qk_nope_head_dim|global_head_dim|kv_channels)$", 16),
    (r"^qk_rope_head_dim$", 8),
    (r"^(q|kv|o)_lora_rank$", 32),
    (r"^linear_num_(key|value)_heads$", 2),
    (r"^linear_(key|value)_head_dim$", 16),
    (r"(intermediate_size|ffn_dim|n_inner|ffn_hidden_size|moe_ffn_hidden_size|mlp_dim)(_mlp)?$", 96),
    (r"^vocab_size(_per_layer_input)?$", 160),
    (r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts|num_routed_experts)$", 4),
    (r"^(num_experts_per_tok|moe_top_?k|top_k_experts|moe_k|num_experts_per_token)$", 2),
    (r"^(n_group|topk_group|num_expert_group|topk_groups|n_groups)$", 1),
    (r"^first_k_dense_replace$", 1),
    (r"^(sliding_window|window_size|attention_chunk_size|index_topk|local_attention)$", 8),
    (r"^(index_n_heads|mamba_n_heads|mamba_num_heads)$", 4),
    (r"^index_head_dim$", 16),
    (r"^(max_position_embeddings|n_positions|n_ctx|max_seq_len)$", 512),
)
_UNSET = {"kv_channels": 16, "num_experts_per_tok": 2}  # values for keys whose default is None
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def small_config(kind: str, **changes: Any) -> Any:
    """Returns the default configuration of a model type, such as ``llama``, with reduced sizes.

    ``changes`` are further keys and values for the language model's part of the configuration.

    Raises:
        Exception: any error that the configuration's class raises for the reduced sizes.
    """
    about = AutoConfig.for_model(kind)
    sizes = _small(about)
    if getattr(about, "text_config", None) is not None:
        sizes["text_config"] |= changes
    else:
        sizes |= changes
    config = type(about)(**sizes)
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    if kinds and "layer_types" not in changes and (longer := _including_all(about, len(kinds))) > len(kinds):
        return small_config(kind, num_hidden_layers=longer, **changes) if "num_hidden_layers" not in changes else config
    return config


def windowed(config: Any) -> dict[str, Any] | None:
    """Returns the configuration changes that switch on a sliding window.

    The result is None if the architecture has no sliding window, or if the window is already on.
    """
    text = config.get_text_config()
    about = text.to_dict()
    if "sliding_window" not in about:
        return None
    switched = "use_sliding_window" in about and not about["use_sliding_window"]
    if about["sliding_window"] is not None and not switched:
        return None
    more = {"use_sliding_window": True, "max_window_layers": 2, "layer_types": None}
    return {"sliding_window": 8} | {key: value for key, value in more.items() if key in about}


def small_model(config: Any, seed: int = 0) -> Any:
    """Returns a causal LM of the configuration ``config`` in float32 with random weights.

    Raises:
        ValueError: the model has more than ``MOST`` parameters.
        Exception: any error that the model's class raises.
    """
    with torch.device("meta"):
        count = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if count > MOST:
        raise ValueError(f"the model still has {count / 1e6:.0f} million parameters after its sizes were reduced")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        widen(model)
    return model.requires_grad_(True).eval()


@torch.no_grad()
def widen(model: Any) -> None:
    """Replaces every weight by random values.

    Matrices are drawn such that they approximately keep the norm of their input. Scales and biases vary about their
    initial values. Recurrent layers forget slowly, so that an error in passing on their state changes every log-prob.
    """
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            continue
        if name.endswith("A_log"):
            parameter.normal_(MEMORY, 0.2)
        elif parameter.ndim < 2:
            first = torch.nan_to_num(parameter)
            parameter.copy_(first + 0.2 * torch.randn_like(parameter))
        else:
            spread = 0.3 if id(parameter) in tables else 0.7 * parameter.shape[-1] ** -0.5
            parameter.normal_(0.0, spread)


def filled(adapted: Any, seed: int = 0) -> Any:
    """Sets the second factors (``lora_B``) of a model's LoRA adapters to random values and returns the model.

    These factors are initially 0, with which the adapters have no effect.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.1)
    return adapted


def _small(config: Any) -> dict[str, Any]:
    """Returns the reduced sizes for a configuration, including those of its nested configurations."""
    about = config.to_dict()
    sizes: dict[str, Any] = {key: value for key, value in _IDS.items() if key in about}
    sizes |= {key: value for key, value in _UNSET.items() if key in about and about[key] is None}
    heads = next((about[key] for key in ("num_attention_heads", "n_head", "num_heads") if key in about), None)
    for key, value in about.items():
        nested = vars(config).get(key)
        if hasattr(nested, "to_dict") and isinstance(value, Mapping):
            sizes[key] = _small(nested)
        elif re.search(r"^num_(global_)?(key_value|kv)_heads$", key):
            sizes[key] = 4 if value == heads else 2
        elif isinstance(value, int) and not isinstance(value, bool):
            small = next((small for pattern, small in _SIZES if re.search(pattern, key)), None)
            if small is not None and value > 0:
                sizes[key] = small
    if "head_dim" in about:  # with latent attention, this must be the size of the rotary part
        sizes["head_dim"] = sizes.get("qk_rope_head_dim", 16)
    return sizes


def _including_all(default: Any, given: int) -> int:
    """Returns the least n for which the n lowest layers of the configuration ``default`` include all kinds of layers.

    If n is above ``2 * LAYERS``, ``given`` is returned instead.
    """
    kinds: Iterable[str] = getattr(default.get_text_config(), "layer_types", None) or ()
    known = list(kinds)
    needed = max((known.index(kind) + 1 for kind in set(known)), default=given)
    return needed if needed <= 2 * LAYERS else given


EXACT, NEAR = 1e-5, 1e-4  # greatest differences: of loss and gradient (relative), and of log-probs (nats)
TRUNK = 150  # number of tokens of the prefix that all paths share; the probe's prefix is shorter
LONG = 3  # turns and observations are this many times as long as those of the probe


@dataclass(frozen=True, slots=True)
class Distance:
    """Differences between the results on a packed tree and on its separate paths.

    Attributes:
        loss, gradient: largest absolute difference, divided by the largest absolute value on the paths or by 1.
        sampled: largest difference between the engine's log-prob and the trainer's log-prob of a token, in nats.
    """

    loss: float
    gradient: float
    sampled: float

    @property
    def exact(self) -> bool:
        return self.loss <= EXACT and self.gradient <= EXACT and self.sampled <= NEAR


def against_paths(model: Any, copy: bool = True, seed: int = 0) -> Distance:
    """Runs a small causal LM on a packed tree and on each path of this tree alone, and returns the differences.

    Only the gradients of trained parameters are compared. The model must use tree attention and have float32 weights.

    Args:
        model: the model, with or without adapters. Its ``.grad`` attributes are not changed.
        copy: whether the engine samples from a copy of the model that has the adapters merged into the weights.
        seed: seed of the random tokens and advantages.
    """
    draw = random.Random(seed)
    vocabulary = len(unwrapped(model).get_output_embeddings().weight)
    trunk = [draw.randrange(3, vocabulary) for _ in range(TRUNK)]
    seen = [[draw.randrange(3, vocabulary) for _ in range(LONG * SEEN)] for _ in range(2)]
    engine = TreeEngine(end_ids=(), copy=copy)
    engine.load_weights(model, 0)
    drawn = sampled_probe_turns(engine, (trunk, seen), LONG * WRITTEN, LONG * LAST)
    example = ProbeTree(trunk, seen, [sample.ids for sample in drawn])
    sampled_K = torch.tensor([x for t in example.order for x in drawn[t].logprobs])
    advantage_K = torch.tensor([draw.uniform(-1, 1) for _ in sampled_K])

    packed_K = score(model, example.packed)[0][example.packed.items.unique_K]
    loss, gradient = _of(model, (packed_K * advantage_K).mean())
    with probe_own_attention(model):
        own_K = torch.cat([_path(model, example, row) for row in range(len(example.paths))])
        own_loss, own_gradient = _of(model, (own_K * advantage_K).mean())
    largest = max(1.0, *(float(g.abs().max()) for g in own_gradient))
    return Distance(
        loss=abs(loss - own_loss) / max(1.0, abs(own_loss)),
        gradient=max(float((x - y).abs().max()) for x, y in zip(gradient, own_gradient, strict=True)) / largest,
        sampled=float((sampled_K - packed_K.detach()).abs().max()),
    )


def _path(model: Any, example: ProbeTree, row: int) -> Tensor:
    """Returns the log-probs of the tokens that are counted for path number ``row``, from a forward pass over this path.

    A token that several paths share is counted only for the first of these paths.
    """
    items = [k for k, own in enumerate(example.row) if own == row]
    logits = model(input_ids=example.paths[row : row + 1], use_cache=False).logits[0].float()
    logs = logits[[example.place[k] for k in items]].log_softmax(-1)
    return logs.gather(-1, example.target_K[items][:, None])[:, 0]


def _of(model: Any, loss: Tensor) -> tuple[float, list[Tensor]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, trained, allow_unused=True)
    return float(loss), [torch.zeros_like(p) if g is None else g for p, g in zip(trained, found, strict=True)]
