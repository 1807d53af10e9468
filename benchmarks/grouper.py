"""Loads Unsloth's attention over a shared prefix (its PrefixGrouper kernel) without importing Unsloth's package.

Unsloth pins older releases of transformers and TRL than this project and changes other libraries when it is imported.
Its kernel needs only torch, so the kernel's file is loaded by its path. ``pip install --no-deps --target .venv-unsloth
unsloth`` installs it (``make gpu`` does this). It is under the AGPL, and no part of it belongs to this project.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from torch import Tensor

from turnwise.models.attention import PLAIN, OfTrees, Rules

FOLDER = Path(os.environ.get("TURNWISE_UNSLOTH", Path(__file__).resolve().parents[1] / ".venv-unsloth"))
KERNEL = FOLDER / "unsloth" / "utils" / "prefix_grouper_kernel.py"


def grouper_absent(device: str) -> str | None:
    """Returns the reason why the kernel cannot be measured on a device, or None."""
    if not KERNEL.exists():
        return f"unsloth: not installed ({KERNEL} is not there)"
    return None if device == "cuda" else "unsloth: its kernel has no gradient on a CPU"


@cache
def kernel() -> Any:
    name = "unsloth_prefix_grouper_kernel"
    spec = spec_from_file_location(name, KERNEL)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class GroupedTree(OfTrees):
    """An attention plan for one packed row that branches once: a prefix and its answers.

    Args:
        end_BS: (1, S), as in ``turnwise.models.attention.PackedTree``.
        compiled: whether the kernel is compiled. Without compilation, which is for tests, all scores are in memory.
    """

    def __init__(self, end_BS: Tensor, compiled: bool = True) -> None:
        self.end, self.compiled = end_BS, compiled
        prefix, answers = group_of(end_BS)
        self.segments = kernel().build_seg_info_multigroup([(prefix, answers)], end_BS.device)[0]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, rules: Rules = PLAIN
    ) -> Tensor:
        if rules is not PLAIN:
            raise ValueError("only plain attention is computed here")
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        out: Tensor = kernel().flex_shared_prefix_attention(
            q, k, v, self.segments, scale=scaling, compiled=self.compiled
        )
        return out.transpose(1, 2)


def group_of(end_BS: Tensor) -> tuple[int, list[int]]:
    """Returns the number of tokens of the prefix and of each answer.

    Raises:
        ValueError: the rows are not one tree that branches once.
    """
    end = end_BS[0].tolist()
    size = len(end)
    prefix = next((place for place, last in enumerate(end) if last != size), size)
    answers, place = [], prefix
    while place < size:
        last = end[place]
        if last <= place or any(other != last for other in end[place:last]):
            raise ValueError("Unsloth's grouper packs one prefix and answers to it; this tree branches again")
        answers.append(last - place)
        place = last
    if len(end_BS) != 1:
        raise ValueError(f"the input must be one row, got {len(end_BS)} rows")
    return prefix, answers
