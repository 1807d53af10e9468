"""Methods against each other over a swept number, worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.reports.against_setting import differences
from turnwise.reports.find_runs import FinishedRuns


def row(method: str, at: float | None, after: dict[int, float]) -> Any:
    config = {} if at is None else {"judge.noise": at}
    return SimpleNamespace(first=SimpleNamespace(method=method), config=config, values=lambda metric: after)


ROWS = [
    row("awpo", 0, {0: 50.0, 1: 52.0, 2: 54.0}),
    row("awpo", 0.8, {0: 48.0, 1: 50.0, 2: 49.0}),
    row("mixed", 0, {0: 49.0, 1: 50.0, 2: 51.0}),
    row("mixed", 0.8, {0: 44.0, 1: 47.0, 2: 44.0}),
    row("toolrl", None, {0: 47.0, 1: 50.0}),
]


def test_differences_by_hand() -> None:
    table = differences(FinishedRuns({("apibank", "tiny"): ROWS}), "judge.noise")[0]
    assert table.headers == ["", "judge.noise 0", "judge.noise 0.8", "all"]
    rows = {cells[0]: cells[1:] for cells in table.rows}
    assert list(rows) == ["awpo over mixed", "awpo over toolrl", "mixed over toolrl"]
    # at 0: 1, 2, 3, t(2) = 4.303, s = 1: 4.303 / sqrt(3) = 2.48; all: (1 + 4)/2, (2 + 3)/2, (3 + 5)/2 = 2.5, 2.5, 4
    assert rows["awpo over mixed"] == ["+2.0 +- 2.5", "+4.0 +- 2.5", "+3.0 +- 2.2"]
    assert rows["mixed over toolrl"][0].startswith("+1.0")  # the seeds that both have: 2 and 0


def test_one_seed_has_no_interval_and_one_value_no_table() -> None:
    single = [row("awpo", 0, {0: 5.0}), row("awpo", 1, {0: 6.0}), row("mixed", 0, {0: 4.0}), row("mixed", 1, {1: 4.0})]
    table = differences(FinishedRuns({("e", "tiny"): single}), "judge.noise")[0]
    assert table.rows == [["awpo over mixed", "+1.0", "-", "-"]]
    assert differences(FinishedRuns({("e", "tiny"): ROWS[:1]}), "judge.noise") == []


@pytest.mark.parametrize("at", [True, "high"])
def test_what_is_no_number_is_no_value(at: Any) -> None:
    rows = [*ROWS[:4], row("other", at, {0: 1.0, 1: 2.0})]
    table = differences(FinishedRuns({("e", "tiny"): rows}), "judge.noise")[0]
    assert [cells[0] for cells in table.rows] == ["awpo over mixed", "awpo over other", "mixed over other"]
