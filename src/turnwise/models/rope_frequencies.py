"""Fixes a model's rotary frequencies, so that they do not depend on which tokens share a forward pass.

longrope (Phi-3 long, arXiv:2402.13753) and dynamic NTK scaling choose the frequencies by the longest position in a
forward pass. A token in a packed tree would then be rotated differently than in sampling, when its path is still short.
To prevent this, the frequencies are chosen once, when the model is loaded.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FIXED = "fixed"  # a rope_type for which transformers never changes the frequencies


def fix_rope(model: Any, longest: int | None = None) -> None:
    """Fixes a model's rotary frequencies for paths of at most ``longest`` tokens.

    longrope has one set of factors for paths up to the context length of the model's pretraining, and another set for
    longer paths. ``longest`` decides which set is used for all tokens; None: the set for short paths.

    Raises:
        ValueError: the model uses dynamic scaling, and ``longest`` is above the length up to which the frequencies stay
            the same.
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
                f"position: above {most} tokens, the angles of rope_type {kind} depend on the length of the forward "
                f"pass, but an episode may have {longest} tokens; set rollout.max_length={most}, or set another "
                "rope_type in the model's config.json"
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
