"""The first question to a judge, in a run of several processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise.training.check_judge import Proof


class Process:
    """One of several: ``said`` is what the first one tells the others."""

    def __init__(self, first: bool, said: str | None) -> None:
        self.first, self.said = first, said

    def broadcast(self, value: str | None) -> str | None:
        return value if self.first else self.said


class Dead:
    def prove(self, state: object) -> str | None:
        raise InputError("no score")


@pytest.mark.parametrize("first", [True, False])
def test_a_dead_judge_ends_every_process(first: bool) -> None:
    judged: Any = Dead()
    distributed: Any = Process(first, "no score")
    with pytest.raises(InputError, match="no score"):
        Proof(judged, [object()], distributed, lambda line: None).ask()  # type: ignore[list-item]


def test_a_run_that_asked_at_its_start_does_not_ask_when_it_trains() -> None:
    told: list[str] = []
    judged: Any = SimpleNamespace(prove=lambda state: "from its cache")
    distributed: Any = Process(True, None)
    proof = Proof(judged, [object()], distributed, told.append)  # type: ignore[list-item]
    proof.ask()
    proof.on_train_start(None, None)
    assert told == ["from its cache"]
    Proof(judged, [object()], distributed, told.append).on_train_start(None, None)  # type: ignore[list-item]
    assert len(told) == 2
