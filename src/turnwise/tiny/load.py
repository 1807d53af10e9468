"""Where the shipped policy lies."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "tiny"


def tiny_path() -> Path:
    """The folder of the embedded base policy, loadable by ``transformers`` as a local model.

    Raises:
        FileNotFoundError: the weights are not there.
    """
    if not (ASSETS / "model.safetensors").is_file():
        raise FileNotFoundError(f"no model.safetensors in {ASSETS}; reinstall, or rebuild it with scripts/make_tiny.py")
    return ASSETS
