"""Benchmarks are scripts beside one another: their folder is on the path, as when one is run."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"

if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))
