"""The folders of the shipped policies, and the environments on which they were trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from turnwise.errors import InputError

_SHELF = Path(__file__).resolve().parents[1] / "assets"
WORLDS: Mapping[str, tuple[str, ...]] = {
    "tiny": ("household",),
    "tiny_tools": ("bfcl", "apibank", "search", "math", "terminal", "software"),
    "tiny_thinking": ("bfcl", "apibank"),
    "tiny_thinking_medium": ("bfcl", "apibank"),
    "tiny_thinking_small": ("bfcl", "apibank"),
    "tiny_llama": ("bfcl", "search", "math"),
}
"""A name that ``policy.model`` accepts -> the environments on which this base was trained, at their tiny levels."""
BASES: Mapping[str, Path] = {name: _SHELF / name for name in WORLDS}
"""The same names -> their folders."""
ASSETS = BASES["tiny"]


def tiny_path(name: str = "tiny") -> Path:
    """Returns the folder of a shipped base policy, which ``transformers`` can load as a local model.

    Raises:
        KeyError: no base of that name is shipped.
        InputError: the weights are missing; the message says how to build them.
    """
    folder = BASES[name]
    if not (folder / "model.safetensors").is_file():
        raise InputError(
            f"base {name}: no model.safetensors in {folder}; build it: python -m recipes.tiny --base {name} --ship"
        )
    return folder


def weights_of(model: str) -> str:
    """Returns the folder or id of a configured model, which may be the name of a base."""
    return str(tiny_path(model) if model in BASES else model)


def unknown_to(model: str, world: str, level: str | None) -> str | None:
    """Returns a warning if a base was never trained in an environment or at its level, else None."""
    if model not in WORLDS or (world in WORLDS[model] and level in (None, "tiny")):
        return None
    if world in WORLDS[model]:
        return f"base={model} was trained on {world} only at level=tiny; policy.model= takes a model of your own"
    better = [name for name, worlds in WORLDS.items() if world in worlds]
    remedy = f"base={better[0]} was" if better else "policy.model= takes a model of your own"
    return f"base={model} was never trained on {world}, and will hardly solve a task there; {remedy}"
