"""A run that a signal ends, and that is started again, ends as if nobody had stopped it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.integration.watched import outcome, wait_until
from tests.kill import CONFIGURATIONS, check, differences, ending, finish, saved, start


@pytest.mark.slow
def test_a_signal_stops_a_run_with_a_word_and_loses_nothing(tmp_path: Path) -> None:
    """While the next iteration is collected in a thread, and never with the exit status of a run that is done."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    overrides = [*CONFIGURATIONS["staleness"], "update.steps=3"]
    finish(overrides, whole)
    for number, least in ((signal.SIGTERM, 2), (signal.SIGINT, 3)):
        process = start(overrides, stopped)
        wait_until(process, lambda least=least: saved(stopped) >= least)  # type: ignore[misc]
        process.send_signal(number)
        _, error = outcome(process)
        assert process.returncode == 128 + number, error[-2000:]
        assert number.name in error.splitlines()[-1] and "Traceback" not in error
        assert not (stopped / "result.json").exists()
    finish(overrides, stopped)
    assert not differences(ending(whole), ending(stopped))
    # killed between its last evaluation and its result, when nothing is left to measure
    expected = ending(stopped)
    (stopped / "result.json").unlink()
    finish(overrides, stopped)
    assert not differences(expected, ending(stopped))
    assert json.loads((stopped / "result.json").read_text())["faults"]["evaluations"] == 0


# -- kill --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kills"), [("trace", 1), ("staleness", 2)])
def test_a_killed_run_ends_bit_for_bit_like_another(name: str, kills: int, tmp_path: Path) -> None:
    check(name, kills, tmp_path)
