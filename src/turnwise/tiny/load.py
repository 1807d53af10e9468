"""Where the shipped policies lie."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from turnwise.errors import InputError

_SHELF = Path(__file__).resolve().parents[1] / "assets"
BASES: Mapping[str, Path] = {name: _SHELF / name for name in ("tiny", "tiny_tools")}
"""Name that ``policy.model`` takes -> folder. ``tiny`` knows the household, ``tiny_tools`` worlds of tools."""
ASSETS = BASES["tiny"]


def tiny_path(name: str = "tiny") -> Path:
    """The folder of an embedded base policy, loadable by ``transformers`` as a local model.

    Raises:
        KeyError: no base of that name is shipped.
        InputError: the weights are not there; the message says how to build them.
    """
    folder = BASES[name]
    if not (folder / "model.safetensors").is_file():
        raise InputError(
            f"base {name}: no model.safetensors in {folder}; build it: python scripts/make_tiny.py --base {name} --ship"
        )
    return folder
