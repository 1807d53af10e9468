"""The extras of `make test-extras`: no test of one is skipped unseen, and all of them fit beside what a run is pinned to."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.extras import EXTRAS, need

# -- extras ------------------------------------------------------------------------------------------------------------

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


# -- locks -------------------------------------------------------------------------------------------------------------

FILES = sorted([ROOT / "requirements.txt", ROOT / "requirements.lock", *ROOT.glob("requirements/*.lock")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ALONE = {"ray"}  # its launcher resolves alone and not together with requirements.lock


def pins(path: Path) -> dict[str, str]:
    """Package -> version; a line that pins no exact version, or two versions of a package, fails."""
    versions: dict[str, str] = {}
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].partition(" --hash=")[0].strip()
        if text and not text.startswith("-c "):
            requirement = Requirement(text)
            (exact,) = requirement.specifier
            assert exact.operator == "==" and not requirement.url and "*" not in exact.version, f"{path.name}: {line}"
            assert versions.setdefault(canonicalize_name(requirement.name), exact.version) == exact.version, line
    return versions


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_names_exact_versions_and_no_server(path: Path) -> None:
    assert pins(path)
    options = [line for line in path.read_text().splitlines() if line.startswith("-")]
    assert all(re.fullmatch(r"-c \.\./requirements\.lock", option) for option in options)


def test_what_a_run_needs_is_pinned_as_in_the_lock() -> None:
    lock = pins(ROOT / "requirements.lock")
    assert pins(ROOT / "requirements.txt").items() <= lock.items()


@pytest.mark.parametrize("extra", sorted(set(PROJECT["optional-dependencies"]) - ALONE))
def test_everything_that_an_extra_names_has_a_pin_within_its_range(extra: str) -> None:
    lock = pins(ROOT / "requirements.lock")
    for requirement in map(Requirement, PROJECT["optional-dependencies"][extra]):
        assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)]), requirement


def test_the_range_of_each_dependency_holds_its_pin() -> None:
    lock = pins(ROOT / "requirements.lock")
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)]), requirement
