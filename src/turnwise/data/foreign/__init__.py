"""Converts trajectories of other programs to Turnwise's format, as ``scripts/prepare_data.py`` does."""

from turnwise.data.foreign.convert import KEYS, Calls, Importer, converted
from turnwise.data.foreign.tool_calls import structured_text

__all__ = ["KEYS", "Calls", "Importer", "converted", "structured_text"]
