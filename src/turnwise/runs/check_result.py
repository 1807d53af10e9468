"""Checks a run's ``result.json`` without the schema of ``runs/result_file.py``, which takes time to import."""

from __future__ import annotations

import json
import os
from pathlib import Path

RESULT = "result.json"
_OF_A_RESULT = {"method", "env", "scale", "seed", "in_domain"}  # keys of every result (runs/result_file.py)


def fault_of_result(folder: Path) -> str | None:
    """Returns what is wrong with a run's ``result.json``: None for a good file, an empty text if there is no file."""
    try:
        path = folder / RESULT
        if not os.path.lexists(path):
            return ""
        if not path.is_file():
            return "not a regular file"
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return f"damaged ({type(error).__name__})"
    missing = _OF_A_RESULT - set(found) if isinstance(found, dict) else _OF_A_RESULT
    return f"not a result: it lacks {', '.join(sorted(missing))}" if missing else None
