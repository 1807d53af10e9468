"""Held-out dialogues: the parts in which replies are sampled, and the figures as metrics."""

from __future__ import annotations

from turnwise.evaluation.reply_statistics import Reply
from turnwise.evaluation.suites import TOGETHER, Evaluation
from turnwise.training.held_out_dialogues import by_reply_limit
from turnwise.training.held_out_result import held_out_metrics, metric_keys
from turnwise.types import State, Task


def test_tools_whose_names_differ_in_replaced_characters_keep_figures_of_their_own() -> None:
    tools = ("book.table", "book table", "book_table", "note")
    replies = [
        Reply(f"d{i}#t0", f"d{i}", 0, (tool,), 1.0, 1, ((float(i % 2), 0.0),), ((0.0, 0.0),))
        for i, tool in enumerate(tools)
    ]
    found = held_out_metrics(Evaluation(replies=replies))
    keys = metric_keys(sorted(tools))
    assert len(set(keys.values())) == len(tools) and keys["book_table"] == "book_table" and keys["note"] == "note"
    assert [found[f"eval/held_out/tool/{keys[tool]}"] for tool in tools] == [0.0, 100.0, 0.0, 100.0]


def test_a_long_history_leaves_the_limit_of_other_replies_alone() -> None:
    task = Task("dialogues", "d", "seen", {})
    lengths = [10] * 70 + [95, 97] + [90] * 5
    states = [State(f"s{i}", task, tuple(range(length))) for i, length in enumerate(lengths)]
    for served, most in ((True, len(states)), (False, TOGETHER)):
        parts = list(by_reply_limit(states, 8, 100, served))
        limits = {state.id: limit for limit, part in parts for state in part}
        assert limits == {state.id: min(8, 100 - len(state.ids)) for state in states}
        assert sum(len(part) for _, part in parts) == len(states) and max(len(part) for _, part in parts) <= most
        assert len(parts) == (3 if served else 4)
