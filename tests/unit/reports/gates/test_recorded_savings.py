"""What a gate saved, from two arms written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise_study.gates.groups import read_arms

Tree = Callable[..., dict[str, Any]]
Written = Callable[[Path, list[Any]], Path]


@pytest.fixture
def arms(tree: Tree, written: Written, tmp_path: Path) -> tuple[Path, Path]:
    """Of three groups the gate cuts the first, rightly, and the second, wrongly; it looked at step 2."""
    free = [tree(["abcd", "abcd"], [0, 0]), tree(["abcd", "abcc"], [0, 1]), tree(["abcd", "xyz"], [0, 0])]
    cut = [tree(["ab", "ab"], [0, 0]), tree(["ab", "ab"], [0, 0]), tree(["abcd", "xyz"], [0, 0])]
    for side in (free, cut):
        for number, group in enumerate(side):
            stop = side is cut and number < 2
            looks = [{"step": 2, "values": {}, "stop": stop}] if side is cut else []
            group |= {"iteration": 0, "state": {"id": f"s{number}"}, "stopped": stop, "looks": looks}
            for turn in group["turns"]:
                turn["tokens"] = 3
    paths = []
    for name, side in (("never", free), ("gate", cut)):
        (tmp_path / name / "seed0" / "rollouts").mkdir(parents=True)
        written(tmp_path / name / "seed0" / "rollouts", side)
        paths.append(tmp_path / name)
    return paths[0], paths[1]


def test_savings_and_precision_by_hand(arms: tuple[Path, Path]) -> None:
    found = read_arms(*arms, resamples=200, seed=0)
    assert (found["groups"], found["baseline"], found["gated"]) == (3, 8 + 8 + 7, 4 + 4 + 7)
    assert found["saved_pct"] == pytest.approx(100 * 8 / 23) == found["tokens_saved_pct"]
    assert found["ci95"][0] < found["saved_pct"] < found["ci95"][1]
    assert [found[key] for key in ("cut", "tp", "fp", "precision", "recall")] == [2, 1, 1, 0.5, 0.5]
    assert found["first_steps_pct"] == found["matched_pct"] == 100


def test_groups_that_differ_before_the_gate_looked_are_told(arms: tuple[Path, Path]) -> None:
    (path,) = arms[1].glob("seed*/rollouts/*.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace('"text": "x"', '"text": "w"'), encoding="utf-8")
    found = read_arms(*arms, resamples=10, seed=0)
    assert found["first_steps_pct"] == pytest.approx(200 / 3) and found["matched_pct"] == 0


def test_arms_without_a_common_group_are_refused(arms: tuple[Path, Path]) -> None:
    (path,) = arms[1].glob("seed*/rollouts/*.jsonl")
    path.write_text(path.read_text(encoding="utf-8").replace('"id": "s', '"id": "t'), encoding="utf-8")
    with pytest.raises(InputError, match="same seed"):
        read_arms(*arms, resamples=10, seed=0)
