"""scripts/export_pivots.py as a program: which turns become rows, what stays of rows that are written back, how it ends."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration import bookings

from turnwise.data.trajectories import read_trajectories
from turnwise.training.candidates import expert_file
from turnwise.types import Pivot
from turnwise_worlds.apibank import ApiBankEnv

SCRIPT = Path(__file__).parents[3] / "scripts" / "export_pivots.py"
spec = importlib.util.spec_from_file_location("export_pivots", SCRIPT)
assert spec is not None and spec.loader is not None
export_pivots: Any = importlib.util.module_from_spec(spec)
sys.modules["export_pivots"] = export_pivots  # its dataclass asks for its module
spec.loader.exec_module(export_pivots)


def run(capsys: Any, *arguments: Any) -> tuple[int, Any, str]:
    status = export_pivots.main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return status, json.loads(printed.out) if status == 0 else None, printed.err


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def profiled(folder: Path, rates: dict[str, tuple[list[float], bool]]) -> Path:
    folder.mkdir()
    table = {"state_id": list(rates), "rewards": [r for r, _ in rates.values()], "kept": [k for _, k in rates.values()]}
    pq.write_table(pa.table(table), folder / "profile.parquet")
    return folder


@pytest.fixture
def demos(tmp_path: Path) -> Path:
    return bookings.write(tmp_path / "demos.jsonl", [r | {"id": f"d{n}"} for n, r in enumerate(bookings.dialogues(9))])


def test_a_file_without_a_run_becomes_rows_of_all_turns(demos: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "rows.jsonl"
    status, told, said = run(capsys, demos, "--out", out, "--agent", "bookings_agent")
    turns = [t for one in read_trajectories(demos).trajectories for t in one.acts]
    assert status == 0 and told["read"] == 9 and told["written"] == len(lines(out))
    assert told["written"] == len(turns)
    assert any(row["expected_action"]["type"] == "function_call_batch" for row in lines(out))
    assert told["with_pass_rate"] == 0 and told["messages"] > 0 and f"{told['messages']} rows" in said
    assert {row["agent_ref"]["name"] for row in lines(out)} == {"bookings_agent"}
    assert all(one.pivot == Pivot() for one in read_trajectories(out).trajectories)


def test_a_run_gives_the_turns_that_it_trains_on_and_their_pass_rates(demos: Path, tmp_path: Path, capsys: Any) -> None:
    folder = profiled(tmp_path / "run", {"d0#t0": ([1.0, 0.0, 0.0, 1.0], True), "d0#t1": ([1.0] * 4, False)})
    out = tmp_path / "rows.jsonl"
    status, told, _ = run(capsys, demos, "--run", folder, "--out", out)
    (row,) = lines(out)
    assert status == 0 and row["provenance"]["turn"] == "d0#t0"
    assert (row["pass_rate"], row["pass_rate_total"], row["pass_rate_passed"]) == (0.5, 4, 2)
    _, told, _ = run(capsys, demos, "--run", folder, "--all", "--out", out)
    assert told["with_pass_rate"] == 2 and told["written"] == len(lines(out)) > 9


def test_rows_are_written_back_with_all_their_keys(demos: Path, tmp_path: Path, capsys: Any) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "rated.jsonl"
    run(capsys, demos, "--out", rows)
    given = [row | {"meta_info": {"n": n}} for n, row in enumerate(lines(rows))]
    given[1]["pass_rate_total"], given[1]["pass_rate_passed"] = 16, 4
    rows.write_text("".join(json.dumps(row) + "\n" for row in given))
    folder = profiled(tmp_path / "run", {"rows:1#t0": ([1.0, 0.0], True)})
    status, told, _ = run(capsys, rows, "--run", folder, "--all", "--out", out)
    assert status == 0 and told["with_pass_rate"] == 2
    rate = {"pass_rate": 0.5, "pass_rate_total": 2, "pass_rate_passed": 1}
    assert lines(out) == [given[0] | rate, *given[1:]]


def test_an_environments_experts_become_rows_with_calls(tmp_path: Path, capsys: Any) -> None:
    """Of text calls as well, if the trajectory lists its tools."""
    file = expert_file(ApiBankEnv(levels=(1, 3), format="hermes"), 12, tmp_path, good=0.5)
    status, told, _ = run(capsys, file, "--out", tmp_path / "rows.jsonl")
    found = lines(tmp_path / "rows.jsonl")
    kinds = [row["expected_action"]["type"] for row in found]
    assert status == 0 and "function_call" in kinds and set(told["left_out"]) <= {"call of an unknown tool"}
    assert not any("<tool_call>" in json.dumps(row) for row in found)
    assert {row["provenance"]["env"] for row in found} == {"apibank"}
