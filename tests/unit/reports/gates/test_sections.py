"""A report on a gate computes what is read of it, and refuses its data at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise.files import KeptValues
from turnwise.reports.gates import offline_tables
from turnwise.reports.gates import report as module
from turnwise.reports.gates.report import Settings, gate_report, gate_sections
from turnwise.reports.gates.sections import KeptSections, Sections

SETTINGS = Settings(k=2, steps=(2,), resamples=20)


@pytest.fixture
def data(tree: Callable[..., dict[str, Any]], written: Callable[[Path, list[Any]], Path], tmp_path: Path) -> Path:
    return written(tmp_path, [tree(["abcd", "abd"], [1, 0]), tree(["abc", "axc"], [0, 0])])


def test_a_section_is_computed_once_and_only_if_it_is_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[str] = []
    for name in ("signals_table", "tuned", "looks_table", "replayed_savings"):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, real=real: computed.append(name) or real(*a))
    ranked: list[object] = []
    rows = offline_tables.rank_rows
    monkeypatch.setattr(offline_tables, "rank_rows", lambda *a: ranked.append(a) or rows(*a))
    report = gate_sections(data, SETTINGS)
    assert report["groups"] == 2 and report["peak"]["k"] == 2 and not computed
    assert list(report["t7"]) == ["2"] and not ranked
    assert report["t7"]["2"] is report["t7"]["2"] and len(ranked) == 1
    assert report["tier1"] == report["replayed"] and report["t7"] is report["t7"]
    assert computed == ["signals_table", "replayed_savings"]
    assert report == gate_report(data, SETTINGS) and list(report) == list(gate_report(data, SETTINGS))


def test_data_that_cannot_be_used_is_refused_before_a_section_is_read(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="gate at step 9 or later"):
        gate_sections(data, Settings(k=9, steps=(9,), resamples=20))
    (empty := tmp_path / "gated.jsonl").write_text("")
    with pytest.raises(InputError, match="no recorded group of iteration 0"):
        gate_sections(data, SETTINGS, empty)


def test_a_section_is_computed_again_only_if_it_is_not_kept(data: Path, tmp_path: Path) -> None:
    path, reads = tmp_path / "cache" / "gates.json", []

    def report(state: str) -> KeptSections:
        def read() -> Sections:
            reads.append(state)
            return gate_sections(data, SETTINGS)

        return KeptSections(read, KeptValues(path, state))

    first, every = report("a"), gate_report(data, SETTINGS)
    assert reads == ["a"] and first["t1"] == every["t1"] and first["t7"] == every["t7"]
    again = report("a")
    assert again["t7"] == every["t7"] and reads == ["a"]
    assert again["t8"] == every["t8"] and reads == ["a", "a"]  # a section that was not kept yet
    assert list(again) == list(every) and len(again) == len(every)
    assert report("b")["groups"] == 2 and reads == ["a", "a", "b"]
