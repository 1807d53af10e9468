"""The first question to a judge, in a run of several processes."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise.training.parts import prove_judge


class Process:
    """One of several: ``first_value`` is what the first one broadcasts."""

    def __init__(self, first: bool, first_value: str | None) -> None:
        self.first, self.first_value = first, first_value

    def broadcast(self, value: str | None) -> str | None:
        return value if self.first else self.first_value


class Dead:
    def prove(self, state: object) -> str | None:
        raise InputError("no score")


@pytest.mark.parametrize("first", [True, False])
def test_a_dead_judge_ends_every_process(first: bool) -> None:
    judged: Any = Dead()
    distributed: Any = Process(first, "no score")
    candidates: Any = [object()]
    with pytest.raises(InputError, match="no score"):
        prove_judge(judged, candidates, distributed, lambda line: None)
