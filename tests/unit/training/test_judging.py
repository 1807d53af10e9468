"""The first question to a judge, in a run of several processes."""

from __future__ import annotations

from typing import Any

import pytest

from turnwise.errors import InputError
from turnwise.training.judging import prove


class Process:
    """One of several: ``said`` is what the first one tells the others."""

    def __init__(self, first: bool, said: str | None) -> None:
        self.first, self.said = first, said

    def tell(self, value: str | None) -> str | None:
        return value if self.first else self.said


class Dead:
    def prove(self, state: object) -> str | None:
        raise InputError("no score")


@pytest.mark.parametrize("first", [True, False])
def test_a_dead_judge_ends_every_process(first: bool) -> None:
    judged: Any = Dead()
    ranks: Any = Process(first, "no score")
    with pytest.raises(InputError, match="no score"):
        prove(judged, [object()], ranks, lambda line: None)  # type: ignore[list-item]
