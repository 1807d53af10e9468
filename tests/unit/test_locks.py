"""What an installation gets: exact versions, from no named server, and one of each package beside requirements.lock."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("requirements*.txt"), *ROOT.glob("requirements*.lock")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UNPINNED = {"ray"}  # its launcher resolves alone and not together with requirements.lock


def pins(path: Path) -> dict[str, str]:
    """Package -> version of the lines that name one; a line that names one otherwise than exactly fails."""
    found = {}
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text and not text.startswith(("-r ", "-c ")):
            asked = Requirement(text)
            (exact,) = asked.specifier
            assert exact.operator == "==" and not asked.url and "*" not in exact.version, f"{path.name}: {line}"
            found[canonicalize_name(asked.name)] = exact.version
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_names_exact_versions_and_no_server(path: Path) -> None:
    assert pins(path)
    options = [line for line in path.read_text().splitlines() if line.startswith("-")]
    assert all(re.fullmatch(r"-[rc] requirements[\w.-]*", option) for option in options)


def test_what_is_installed_beside_the_lock_agrees_with_it() -> None:
    lock = pins(ROOT / "requirements.lock")
    beside = [path for path in FILES if "-c requirements.lock" in path.read_text().splitlines()]
    beside += [ROOT / "requirements.txt", ROOT / "requirements-dev.txt"]
    wrong = {
        f"{path.name}: {name}=={version}, and the lock has {lock[name]}"
        for path in beside
        for name, version in pins(path).items()
        if lock.get(name, version) != version
    }
    assert len(beside) > 4 and wrong == set()


@pytest.mark.parametrize("extra", sorted(set(PROJECT["optional-dependencies"]) - UNPINNED))
def test_an_extra_of_the_package_has_a_pin_within_its_range(extra: str) -> None:
    for asked in map(Requirement, PROJECT["optional-dependencies"][extra]):
        found = {pins(path).get(canonicalize_name(asked.name)) for path in FILES} - {None}
        assert found and all(asked.specifier.contains(version) for version in found), asked


def test_the_range_of_each_dependency_holds_its_pin() -> None:
    pinned = pins(ROOT / "requirements.txt") | pins(ROOT / "requirements.lock")
    for asked in map(Requirement, PROJECT["dependencies"]):
        assert asked.specifier.contains(pinned[canonicalize_name(asked.name)]), asked
