"""What an installation gets: exact versions, from no named server, one of each package, for all extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
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
