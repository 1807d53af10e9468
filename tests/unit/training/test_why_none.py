"""The remedy that a run names if its profile leaves no state to train on."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from turnwise.methods.states import Profile
from turnwise.training.profile import why_none


@pytest.mark.parametrize(
    ("rewards", "cut", "keep", "remedy"),
    [
        ([[0, 0], [0, 0]], 0, "mixed", "method=sft"),
        ([[0, 0], [0, 0]], 3, "adv", "raise rollout.sampling.max_tokens"),
        ([[1, 1], [1, 1]], 0, "adv", "harder data"),
        ([[1, 1], [0, 1]], 0, "adv", "states.lambda_diff"),
        ([[1, 1], [0, 0]], 0, "mixed", "states.k"),
    ],
)
def test_the_remedy_is_of_what_happened(rewards: list[list[float]], cut: int, keep: str, remedy: str) -> None:
    profiles = {str(n): Profile(tuple(row), tuple(row)) for n, row in enumerate(rewards)}
    table = pa.table({"actions": [["a", "b"] for _ in rewards]})
    table = table.replace_schema_metadata({b"turnwise": json.dumps({"cut": cut}).encode()})
    told = why_none(table, profiles, keep)
    assert remedy in told and (keep != "mixed" or "states.keep" not in told)
