"""Writes a policy's weights into a folder from which vLLM servers load them, under a unique name."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from turnwise.files import writing

_WHOLE, _BODY, _HEAD = "model.safetensors", "model-body.safetensors", "model-head.safetensors"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights on disk.

    ``name`` contains the version and a digest of the weights and their folder, so different weights never have the same
    name. A server may drop an adapter from memory and read its folder again later. The server must then find the same
    weights in the folder, not those of another run.
    """

    name: str
    version: int
    folder: Path
    adapter: bool  # True: a LoRA adapter; False: all weights
    vocabulary: int  # size of the model's vocabulary


class Uses:
    """The snapshots that requests in progress and views of the engine still need. Any thread may call the methods."""

    def __init__(self) -> None:
        self._now: dict[object, Snapshot] = {}  # a key for each use, so that a use ends without a search

    @contextmanager
    def use(self, snapshot: Snapshot) -> Iterator[None]:
        """Counts ``snapshot`` as used within a ``with`` block."""
        key = object()
        self._now[key] = snapshot
        try:
            yield
        finally:
            del self._now[key]

    def all(self) -> list[Snapshot]:
        """Returns the snapshot of each use. A snapshot with several uses is in the list several times."""
        return list(self._now.values())


def save(model: Any, version: int, root: Path) -> Snapshot:
    """Writes the adapter of ``model``, or all weights if it has no adapter, in Hugging Face's format.

    An output head that is tied to the embedding is written as a separate weight. Otherwise vLLM on CPUs would not
    update the head when it reloads weights, because it keeps a packed copy of a tied head.

    Raises:
        OSError: the weights cannot be written; ``filename`` is the folder's path.
    """
    adapter = hasattr(model, "get_base_model")
    part = root / "unfinished"
    with writing(part):
        shutil.rmtree(part, ignore_errors=True)
        model.save_pretrained(part, safe_serialization=True)
        if not adapter and model.config.tie_word_embeddings:
            _untie(model, part)
    digest = hashlib.sha256(str(root.resolve()).encode("utf-8", "surrogateescape"))
    for file in sorted(part.iterdir()):
        if file.suffix in (".safetensors", ".json"):
            with file.open("rb") as stream:
                digest.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())
    name = f"v{version}-{digest.hexdigest()[:16]}"
    folder = root / name
    if folder.exists():
        shutil.rmtree(part)
    else:
        with writing(folder):
            part.rename(folder)
    return Snapshot(name, version, folder.resolve(), adapter, int(model.config.vocab_size))


def _untie(model: Any, folder: Path) -> None:
    """Adds the output head to saved weights as a separate weight, and updates the index and the configuration."""
    head = model.get_output_embeddings().weight.detach().clone().cpu()
    save_file({"lm_head.weight": head}, folder / _HEAD, metadata={"format": "pt"})
    index = folder / _INDEX
    if index.exists():
        content = json.loads(index.read_text(encoding="utf-8"))
    else:
        (folder / _WHOLE).rename(folder / _BODY)
        with safe_open(folder / _BODY, framework="pt") as stream:
            content = {"metadata": {}, "weight_map": dict.fromkeys(stream.keys(), _BODY)}
    content["weight_map"]["lm_head.weight"] = _HEAD
    index.write_text(json.dumps(content), encoding="utf-8")
    config = folder / "config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**content, "tie_word_embeddings": False}), encoding="utf-8")


def forget(root: Path, *kept: Snapshot | None) -> None:
    """Removes the folders of all snapshots in ``root`` except ``kept``."""
    names = {snapshot.name for snapshot in kept if snapshot is not None}
    for folder in root.glob("v*-*"):
        if folder.name not in names:
            shutil.rmtree(folder, ignore_errors=True)
