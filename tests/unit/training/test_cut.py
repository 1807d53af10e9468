"""What a run that begins again leaves of its metrics."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from turnwise.runs.json_lines import cut_lines, each_line
from turnwise.training.recorder import Recorder


@pytest.mark.parametrize(("epoch", "left"), [(3, 5), (2, 3), (5, 7)])
def test_what_the_checkpoint_does_not_know_is_made_again_in_its_order(tmp_path: Path, epoch: int, left: int) -> None:
    rows = [(0, "eval"), (0, "train"), (1, "train"), (2, "train"), (3, "eval"), (3, "train"), (5, "eval")]
    text = "".join(json.dumps({"iteration": i, "phase": phase}) + "\n" for i, phase in rows)
    (tmp_path / "metrics.jsonl").write_text(text)
    Recorder(tmp_path, {}).on_train_start(SimpleNamespace(current_epoch=epoch), None)  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["iteration"], line["phase"]) for line in lines] == rows[:left]


def test_an_evaluation_is_logged_once_however_often_a_run_begins_again(tmp_path: Path) -> None:
    logged: list[tuple[int, dict[str, float]]] = []
    log = SimpleNamespace(log_metrics=lambda metrics, step: logged.append((step, metrics)))
    for _ in range(2):
        recorder = Recorder(tmp_path, {}, loggers=[log])  # type: ignore[list-item]
        recorder.write(0, "eval", {"eval/seen/success": 50.0})
    recorder.write(0, "train", {"train/loss": 1.0})
    assert logged == [(0, {"eval/seen/success": 50.0}), (0, {"train/loss": 1.0})]
    assert [row["phase"] for row in each_line(tmp_path / "metrics.jsonl")] == ["eval", "train"]


def test_lines_are_read_and_cut_one_at_a_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, count = tmp_path / "train.jsonl", 400
    with path.open("w") as stream:
        for iteration in range(count):
            stream.write(
                "broken\n" if iteration in (7, 9) else json.dumps({"iteration": iteration, "text": "x" * 20_000}) + "\n"
            )
        stream.write('{"iteration": 400')
    tracemalloc.start()
    try:
        assert sum(1 for _ in each_line(path)) == count - 2
        cut_lines(path, lambda row: row["iteration"] < count - 5)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 2**20  # of 8 MB
    assert [row["iteration"] for row in each_line(path)] == [i for i in range(count - 5) if i not in (7, 9)]
    one, again = (record.getMessage() for record in caplog.records)  # from reading and from cutting
    assert one == again and str(path) in one and "line 8" in one
