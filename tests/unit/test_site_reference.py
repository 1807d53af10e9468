"""The site's reference has a page of every module of the folders that it describes as a whole."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", ["states", "allocators", "gates", "rewards", "advantages", "losses"])
def test_all_modules_of_a_part_are_listed(part: str) -> None:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site" / "hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    modules = {path.stem for path in (ROOT / "src" / "turnwise" / "algo" / part).glob("*.py")} - {"__init__"}
    assert sorted(hooks.REFERENCE[part]) == sorted(f"algo.{part}.{name}" for name in modules)
