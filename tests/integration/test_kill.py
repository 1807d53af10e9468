"""Runs that are killed at random moments; tests/kill.py makes more kills, over more configurations."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kill import check


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills"), [("trace", 1), ("staleness", 2)])
def test_a_killed_run_ends_bit_for_bit_like_another(name: str, kills: int, tmp_path: Path) -> None:
    check(name, kills, tmp_path)
