"""What a run that begins again leaves of its metrics."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from turnwise.training.recorder import Recorder


@pytest.mark.parametrize(("epoch", "left"), [(3, 5), (2, 3), (5, 7)])
def test_what_the_checkpoint_does_not_know_is_made_again_in_its_order(tmp_path: Path, epoch: int, left: int) -> None:
    rows = [(0, "eval"), (0, "train"), (1, "train"), (2, "train"), (3, "eval"), (3, "train"), (5, "eval")]
    text = "".join(json.dumps({"iteration": i, "phase": phase}) + "\n" for i, phase in rows)
    (tmp_path / "metrics.jsonl").write_text(text)
    Recorder(tmp_path, {}).on_train_start(SimpleNamespace(current_epoch=epoch), None)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["iteration"], line["phase"]) for line in lines] == rows[:left]
