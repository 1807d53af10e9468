"""Rotary frequencies that do not depend on which tokens share a pass.

Two kinds of scaling choose their frequencies by the longest position of a forward pass: longrope (Phi-3 long,
arXiv:2402.13753) and dynamic NTK scaling. A packed tree and a sampled token would then be turned otherwise than the paths that
they belong to, and a token that was sampled early otherwise than when its path is trained on. So the choice is made once, at
load.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FIXED = "fixed"  # a kind that no forward pass changes


def fix_rope(model: Any, longest: int | None = None) -> None:
    """Fix the frequencies of a model for paths of at most ``longest`` tokens; None: no more than it was first trained on.

    longrope takes its short factors for as many tokens as the first training had, and else its long ones, for every token, as
    the model's own pass over a path of that length does.

    Raises:
        ValueError: dynamic scaling, and paths longer than the first training had.
    """
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str):
            module.rope_type = _fixed(module, kind, longest)
        elif isinstance(kind, dict):
            module.rope_type = {layers: _fixed(module, each, longest, layers) for layers, each in kind.items()}


def _fixed(module: Any, kind: str, longest: int | None, layers: str | None = None) -> str:
    prefix = "" if layers is None else f"{layers}_"
    if "dynamic" in kind:
        most = getattr(module, f"{prefix}max_seq_len_cached", module.max_seq_len_cached)
        if longest is not None and longest > most:
            raise ValueError(
                f"position: rope_type {kind} turns tokens by the length of the pass beyond {most} tokens, and paths may have "
                f"{longest}; set rollout.max_length={most}, or give the model's config.json another rope_type"
            )
        return FIXED
    if kind != "longrope":
        return kind
    about = module.config.rope_parameters if layers is None else module.config.rope_parameters[layers]
    first = about["original_max_position_embeddings"]
    asked = first if longest is None else longest
    given = {} if layers is None else {"layer_type": layers}
    frequencies = getattr(module, f"{prefix}inv_freq")
    with torch.no_grad():
        found, _ = ROPE_INIT_FUNCTIONS[kind](module.config, frequencies.device, seq_len=asked, **given)
        frequencies.copy_(found)
    return FIXED
