"""scripts/expert_data.py: every world's experts, of two qualities, in a file that others read too."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from turnwise.data.trajectories import read_trajectories

SCRIPT = Path(__file__).parents[3] / "scripts" / "expert_data.py"
spec = importlib.util.spec_from_file_location("expert_data", SCRIPT)
expert_data = sys.modules["expert_data"] = importlib.util.module_from_spec(spec)  # its dataclass asks for it
spec.loader.exec_module(expert_data)

WORLDS = {
    "household": ["env.mistakes.revisit=0.25"],
    "search": ["env.mistakes.repeat=0.5"],
    "browse": ["env.mistakes.stray=0.5"],
    "math": ["env.mistakes.slip=0.5"],
    "terminal": ["env.slips.look=0.5"],
    "software": ["env.slips.again=0.25"],
    "apibank": ["env.mistakes.repeat=0.5"],
    "bfcl": ["env.mistakes.repeat=0.5"],
}


@pytest.mark.parametrize("env", WORLDS)
def test_experts_of_two_qualities_that_datasets_reads(env, tmp_path, capsys):
    out = tmp_path / "both.jsonl"
    status = expert_data.main([f"env={env}", "count=6", f"out={out}", *WORLDS[env]])
    printed = capsys.readouterr()
    if env == "bfcl" and status == 2:
        pytest.skip(printed.err)
    assert status == 0, printed.err
    told = json.loads(printed.out.splitlines()[-1])
    found = read_trajectories(out, strict=True).trajectories
    assert told["trajectories"] == len(found) == 12
    assert told["won"] == sum(bool(trajectory.success) for trajectory in found) >= 6
    good, clumsy = found[::2], found[1::2]
    assert [t.task for t in good] == [t.task for t in clumsy]
    assert all("/good/" in t.id for t in good) and all("/clumsy/" in t.id for t in clumsy)
    assert all(t.success for t in good)
    said = [[[m["content"] for m in t.messages if m["role"] == "assistant"] for t in some] for some in (good, clumsy)]
    assert said[0] != said[1]
    assert sum(map(len, said[0])) < sum(map(len, said[1]))
    loaded = pytest.importorskip("datasets").load_dataset(
        "json", data_files=str(out), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded["id"][:] == [trajectory.id for trajectory in found]
    assert set(loaded[0]["messages"][0]) >= {"role", "content", "tool_calls"}
