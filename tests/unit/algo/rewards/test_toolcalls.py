from __future__ import annotations

import math

import pytest

from turnwise.algo.rewards.actions import ToolCalls
from turnwise.errors import InputError
from turnwise.types import RolloutTree, State, Task, Turn

BOTH = "[f(a=1), g()]"


def tree_of(*texts: str, expert: str | None = BOTH) -> RolloutTree:
    state = State(id="d0#t1", task=Task("", "d0", "train"), ids=(1,), expert=expert)
    return RolloutTree(state, [Turn(-1, [1], [-1.0], text) for text in texts])


def test_functional_pays_what_strict_misses() -> None:
    tree = tree_of(BOTH, "[g(), f(a=1.0)]", "f(a=1)", "[f(a=1", "prose")
    assert ToolCalls("bfcl_python")(tree) == {
        "format": [1.0, 1.0, 1.0, 0.0, 1.0],
        "functional": [1.0, 1.0, 0.0, 0.0, 0.0],
        "strict": [1.0, 0.0, 0.0, 0.0, 0.0],
        "total": [1.0, 1.0, 0.0, 0.0, 0.0],
    }
    assert ToolCalls("bfcl_python", exact=True)(tree)["total"] == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_no_call_is_right_where_none_was_demonstrated() -> None:
    assert ToolCalls("bfcl_python")(tree_of("hello", BOTH, expert="bye"))["total"] == [1.0, 0.0]


def test_a_cut_off_reply_earns_nothing_and_a_failed_world_no_number() -> None:
    tree = tree_of(BOTH, BOTH)
    tree.turns[0].truncated = True
    tree.invalid = {1}
    total = ToolCalls("bfcl_python")(tree)["total"]
    assert total[0] == 0 and math.isnan(total[1])


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="no demonstrated calls"):
        ToolCalls()(tree_of("x", expert=None))
    with pytest.raises(InputError, match="d0#t1: the demonstrated action is not in the format hermes"):
        ToolCalls()(tree_of("x", expert="<tool_call>"))
