"""Unsloth's attention over a shared prefix (its PrefixGrouper kernel), read from its package without importing the package.

Unsloth pins older releases of transformers and TRL than this project and changes other libraries when it is imported. Its kernel
needs torch alone, so the one file is loaded by its place. ``pip install --no-deps --target .venv-unsloth unsloth`` brings it
(``make gpu`` does); it is under the AGPL, and nothing of it is part of this project.
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
    """Returns why the kernel cannot be measured on a device, or None where it can."""
    if not KERNEL.exists():
        return f"unsloth: not installed ({KERNEL} is not there)"
    return None if device == "cuda" else "unsloth: its kernel has no gradient on a CPU"


@cache
def kernel() -> Any:
    """Returns the module of the kernel."""
    name = "unsloth_prefix_grouper_kernel"
    spec = spec_from_file_location(name, KERNEL)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class GroupedTree(OfTrees):
    """One packed row that branches once: a prefix and the answers to it (see ``turnwise.models.attention.PackedTree``).

    Args:
        end_BS: (1, S).
        compiled: whether the kernel is compiled; without, it stands for the whole matrix of scores and serves tests.
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
    """Returns the tokens of the prefix and of each answer.

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
