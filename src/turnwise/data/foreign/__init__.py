"""Converts trajectories in the formats of other programs to this project's format. ``scripts/prepare_data.py`` is the
command-line program for it.
"""

from turnwise.data.foreign.convert import KEYS, Calls, Importer, converted, structured_text

__all__ = ["KEYS", "Calls", "Importer", "converted", "structured_text"]
