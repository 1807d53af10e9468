"""docs/architecture.md names every room of the package and every script, and no file that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "turnwise"


def unnamed(text: str) -> set[str]:
    """Rooms, modules of the package itself and scripts that a text does not name."""
    folders = (*SOURCE.iterdir(), *(SOURCE / "algo").iterdir())
    rooms = {f"{path.name}/" for path in folders if path.is_dir() and not path.name.startswith("_")}
    modules = {path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("_")}
    scripts = {path.name for path in (ROOT / "scripts").glob("*.py")}
    words = set(re.findall(r"[\w.]+/|\w+\.py|\w+", text))
    return (rooms | modules | scripts) - words - {word.removesuffix(".py") for word in words}


def missing(text: str) -> set[str]:
    """Paths of code that stand in backquotes and lead nowhere, from the repository, the package or a room of it."""
    named = set(re.findall(r"`([\w/]+\.(?:py|yaml))`", text))
    places = (ROOT, SOURCE, ROOT / "tests")
    return {path for path in named if not any((place / path).exists() for place in places)}


def test_the_page_names_what_is_there_and_nothing_else() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert unnamed(text) == set() and missing(text) == set()


def test_the_comparison_can_fail() -> None:
    text = PAGE.read_text(encoding="utf-8").replace("sandbox/", "box/").replace("endpoints", "points")
    assert {"sandbox/", "endpoints"} <= unnamed(text)
    assert missing("`rollouts/nowhere.py` and `rollouts/collect.py`") == {"rollouts/nowhere.py"}
