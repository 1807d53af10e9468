"""The extras of `make test-extras`: no test of one is skipped unseen, and all of them fit beside what a run is pinned to."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.extras import EXTRAS, need

ROOT = Path(__file__).parents[2]


def test_a_missing_package_skips_a_test_and_fails_it_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "nothing", ("pytest", "no_such_package"))
    monkeypatch.setitem(EXTRAS, "something", ("pytest",))
    monkeypatch.delenv("TURNWISE_REQUIRE_EXTRAS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make nothing"):
        need("nothing")
    monkeypatch.setenv("TURNWISE_REQUIRE_EXTRAS", "1")
    with pytest.raises(pytest.fail.Exception, match="make nothing"):
        need("nothing")
    need("something")
    with pytest.raises(KeyError):
        need("of no such target")


def test_no_test_skips_for_want_of_an_extra_by_other_means() -> None:
    """Such a skip would not become a failure in `make test-extras`."""
    packages = {name for names in EXTRAS.values() for name in names}
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and re.search(r"\b(importorskip|find_spec)$", ast.unparse(node.func)):
                asked = [word.value for word in node.args if isinstance(word, ast.Constant)]
                found += [f"{path.name}:{node.lineno}" for word in asked if str(word).split(".")[0] in packages]
    assert not found, f"use @pytest.mark.extra: {found}"


def test_make_installs_every_extra() -> None:
    (listed,) = re.findall(r"^EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed.split() == sorted(EXTRAS)
