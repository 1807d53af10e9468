"""Ways to damage a model or an adapter on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], None]
DOWN = "model.layers.0.mlp.down_proj.weight"


def tensors(change: Callable[[dict[str, torch.Tensor]], Any], name: str = "model.safetensors") -> Damage:
    def damage(folder: Path) -> None:
        found = load_file(folder / name)
        change(found)
        save_file(found, folder / name, metadata={"format": "pt"})

    return damage


def config(name: str = "config.json", **changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


def index(place: str, pickled: bool = False) -> Damage:
    """The weights under an index that names another file, which is there."""

    def damage(folder: Path) -> None:
        found = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        if pickled:
            torch.save(found, folder / place)
        else:
            save_file(found, folder / place, metadata={"format": "pt"})
        about = {"metadata": {}, "weight_map": dict.fromkeys(found, place)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(about))

    return damage


def split(moved: str, twice: bool) -> Damage:
    """Weights in two files under an index that is wrong about one tensor."""

    def damage(folder: Path) -> None:
        found = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        first = {name: value for name, value in found.items() if twice or name != moved}
        for name, part in (("a.safetensors", first), ("b.safetensors", {moved: found[moved] + 1})):
            save_file(part, folder / name, metadata={"format": "pt"})
        about = {"metadata": {}, "weight_map": {**dict.fromkeys(found, "a.safetensors"), "more": "b.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(about))

    return damage


def dropout(folder: Path) -> None:
    path = folder / "tokenizer.json"
    about = json.loads(path.read_text())
    about["model"]["dropout"] = 0.5
    path.write_text(json.dumps(about))


def twins(folder: Path) -> None:
    path = folder / "tokenizer.json"
    about = json.loads(path.read_text())
    about["added_tokens"].append({**about["added_tokens"][-1], "content": "<twin>"})
    path.write_text(json.dumps(about))


def cut(name: str, size: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size]) and None


def put(tensor: str, value: float) -> Damage:
    return tensors(lambda found: found[tensor].view(-1).__setitem__(3, value))


def vocabulary(folder: Path) -> None:
    """The tokenizer of a model with more ids."""
    path = folder / "tokenizer.json"
    about = json.loads(path.read_text())
    about["added_tokens"].append({**about["added_tokens"][-1], "id": 10**6, "content": "<strange>"})
    about["model"]["vocab"]["<strange>"] = 10**6
    path.write_text(json.dumps(about))
