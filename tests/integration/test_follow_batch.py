"""docs/follow-one-batch.md was written by scripts/follow_batch.py, and its numbers follow from one another as the page says.

Sampled actions may differ from one processor to another. So a fresh run is not held against the page number by number. Both are
held against the formulas, within the digits that are printed.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "follow-one-batch.md"
SECTION = re.compile(r"<!-- table:(\w+) -->\n(.*?)<!-- /table:\1 -->", re.DOTALL)
Tables = Mapping[str, list[list[str]]]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("follow_batch", ROOT / "scripts" / "follow_batch.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def tables(sections: Mapping[str, str]) -> Tables:
    """The rows of each section, heads and rules of its tables among them."""
    lines = {name: [line for line in text.splitlines() if line.startswith("|")] for name, text in sections.items()}
    return {
        name: [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in found]
        for name, found in lines.items()
    }


def rows(found: Tables, section: str) -> list[list[str]]:
    """The rows of the section's main table, which has more than two columns."""
    return [row for row in found[section] if len(row) > 2][2:]


def value(found: Tables, section: str, name: str) -> float:
    return float(next(row[1] for row in found[section] if row[0] == name))


def untrue(found: Tables) -> list[str]:
    """What the page says and its own numbers deny."""
    group, packed, losses, step = (rows(found, name) for name in ("group", "pack", "loss", "step"))
    rewards = [float(r) for r in next(row[1] for row in found["profile"] if row[0] == "rewards").split()]
    mu, variance = value(found, "profile", "mu"), value(found, "profile", "sigma^2")
    times, paid, credit = ([float(row[i]) for row in group] for i in (1, 5, 6))
    size = sum(times)
    mean = sum(n * r for n, r in zip(times, paid)) / size
    std = math.sqrt(sum(n * (r - mean) ** 2 for n, r in zip(times, paid)) / size)
    low, high = 1 - value(found, "loss", "e_low"), 1 + value(found, "loss", "e_high")
    beta, state = value(found, "loss", "beta"), int(value(found, "state", "tokens of the history"))
    place, position, end = ([int(row[i]) for row in packed] for i in (0, 3, 4))
    checks = {
        "mu": near(mu, sum(rewards) / len(rewards)),
        "sigma^2": near(variance, sum((r - mu) ** 2 for r in rewards) / len(rewards)),
        "a pivot": variance > 0 and mu < value(found, "profile", "lambda_diff"),
        "sixteen actions": size == 16,
        "r is the verdict": all((row[3] == "yes") == (r == 1) for row, r in zip(group, paid)),
        "A": all(near(a, (r - mean) / std) for a, r in zip(credit, paid)),
        "the same actions": [row[0] for row in group] == [row[0] for row in losses] == [row[0] for row in step],
        "K": value(found, "pack", "trained tokens (K)") == sum(n * float(row[2]) for n, row in zip(times, group)),
        "paths": value(found, "pack", "tokens of the paths, one by one")
        == size * state + value(found, "pack", "trained tokens (K)"),
        "row": value(found, "pack", "tokens of the row") == state + value(found, "pack", "predicted tokens (U)"),
        "the state's descendants": end[0] == end[1] == value(found, "pack", "tokens of the row"),
        "position is depth": position[:2] == place[:2]
        and all(
            position[j] == state + sum(place[i] < place[j] < end[i] for i in range(2, j)) for j in range(2, len(place))
        ),
        "update": value(found, "pack", "tokens that its rows hold") < value(found, "pack", "tokens of its paths"),
        "weights": 0 < value(found, "step", "largest change of a weight") < 2 * value(found, "step", "learning rate"),
        "clipped": value(found, "step", "gradient norm") <= value(found, "step", "clipped at") + 1e-3,
    }
    for row, before, advantage in zip(losses, step, credit, strict=True):
        old, new, w, a, k3, loss = map(float, row[1:])
        clipped = min(w * a, min(max(w, low), high) * a)
        checks |= {
            f"w of {row[0]}": near(w, math.exp(new - old), 3e-4),
            f"loss of {row[0]}": near(loss, -clipped + beta * w * k3, 1e-3),
            f"k3 of {row[0]}": k3 >= 0,
            f"A of {row[0]}": a == advantage == float(before[1]),
            f"log pi of {row[0]}": new == float(before[2]),
            f"log pi_0 of {row[0]}": near(old, float(before[4]), 2e-3),  # the first policy that sampled is pi_0
        }
    return [name for name, true in checks.items() if not true]


def near(told: float, wanted: float, error: float = 2e-4) -> bool:
    return abs(told - wanted) <= error


def page(text: str | None = None) -> Tables:
    return tables(dict(SECTION.findall(PAGE.read_text(encoding="utf-8") if text is None else text)))


def test_the_numbers_of_the_page_follow_from_one_another() -> None:
    assert untrue(page()) == []


def place(file: str) -> Path:
    """The page names files of the core from its folder, and files of the worlds with theirs."""
    return ROOT / "src" / (file if file.startswith("turnwise_") else f"turnwise/{file}")


def lost(text: str) -> list[str]:
    """Files that the page names and that are not there, and functions that are not in the file that it names."""
    files = set(re.findall(r"`([\w/]+/[\w]+\.py)`", text))
    named = re.findall(r"`([\w.]+)`\s+in\s+`([\w/]+\.py)`", text)
    gone = [file for file in files if not place(file).is_file()]
    return gone + [
        f"{name} in {file}"
        for name, file in named
        if file not in gone and not re.search(rf"(def|class) {name.rpartition('.')[2]}\b", place(file).read_text())
    ]


def test_the_functions_that_the_page_names_are_where_it_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"`\s+in\s+`", text)) >= 12
    assert lost(text) == []
    assert lost("`pack` in `rollouts/collect.py`, `a/b.py`") == ["a/b.py", "pack in rollouts/collect.py"]


@pytest.mark.slow  # a run of one iteration
def test_the_script_writes_such_a_page(tmp_path: Path) -> None:
    follow = script()
    found = follow.follow(tmp_path)
    copy = PAGE.read_text(encoding="utf-8")
    fresh = tables(found)
    assert list(found) == [name for name, _ in SECTION.findall(copy)]
    assert untrue(fresh) == []
    labels = {name: [row[0] for row in table if len(row) == 2] for name, table in fresh.items()}
    heads = {name: [row for row in table if len(row) > 2][:1] for name, table in fresh.items()}
    assert labels == {name: [row[0] for row in table if len(row) == 2] for name, table in page().items()}
    assert heads == {name: [row for row in table if len(row) > 2][:1] for name, table in page().items()}
