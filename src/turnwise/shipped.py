"""Lists the tiny base policies, with their folders and the environments on which they were trained. The package contains
:data:`SHIPPED`; ``scripts.recipes.tiny`` builds the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from turnwise.errors import InputError

_SHELF = Path(__file__).resolve().parent / "assets"
WORLDS: Mapping[str, tuple[str, ...]] = {
    "tiny": ("household",),
    "tiny_tools": ("bfcl", "apibank", "search", "math", "terminal", "software"),
    "tiny_thinking": ("bfcl", "apibank"),
    "tiny_thinking_medium": ("bfcl", "apibank"),
    "tiny_thinking_small": ("bfcl", "apibank"),
    "tiny_llama": ("bfcl", "search", "math"),
}
"""Maps each tiny base policy's name (a value of ``policy.model``) to the environments it was trained on.

Each policy was trained only on the tiny level of these environments.
"""
SHIPPED = ("tiny", "tiny_tools", "tiny_thinking")
BASES: Mapping[str, Path] = {name: _SHELF / name for name in WORLDS}
"""Maps each tiny base policy's name to its folder."""
ASSETS = BASES["tiny"]
PRETRAINED = {"smollm2": Path("outputs/models/SmolLM2-135M-Instruct")}
"""Maps the name of a pretrained model (a value of ``policy.model``) to the folder that ``make NAME`` writes."""


def tiny_path(name: str = "tiny") -> Path:
    """Returns the folder of a tiny base policy. If its weights are missing, an InputError says how to build them."""
    folder = BASES[name]
    if not (folder / "model.safetensors").is_file():
        why = "there is no model.safetensors in" if name in SHIPPED else "the repository does not contain this base in"
        raise InputError(
            f"base={name}: {why} {folder}; build it with: python -m scripts.recipes.tiny --base {name} --ship (a quarter of an "
            "hour to an hour on two cores)"
        )
    return folder


def weights_of(model: str) -> str:
    """Returns the folder of a named model, or ``model`` unchanged if it is a folder, a file or an id. If the weights of a
    named model are missing, an InputError says how to get them.
    """
    if model in PRETRAINED and not (PRETRAINED[model] / "model.safetensors").is_file():
        raise InputError(
            f"policy.model={model}: there is no model.safetensors in {PRETRAINED[model]}; run `make {model}` once, or where "
            "the Hugging Face hub can be reached, set policy.model=HuggingFaceTB/SmolLM2-135M-Instruct"
        )
    return str(tiny_path(model) if model in BASES else PRETRAINED.get(model, model))


def unknown_to(model: str, world: str, level: str | None) -> str | None:
    """Returns a warning if a tiny base policy was not trained on ``world`` (an environment, a file) at ``level``, or None."""
    if model not in WORLDS or (world in WORLDS[model] and level in (None, "tiny")):
        return None
    better = [
        f"base={name} knows {world}" for name, worlds in WORLDS.items() if world in worlds and level in (None, "tiny")
    ]
    remedy = next(iter(better), "policy.model=... takes a model of your own")
    known = ", ".join(WORLDS[model])
    return f"base={model} is a toy that knows only level tiny of {known}: here it will hardly ever succeed; {remedy}"
