"""Figures of held-out dialogues as metrics."""

from __future__ import annotations

from turnwise.evaluation.reply_statistics import Reply
from turnwise.evaluation.suites import Evaluation
from turnwise.training.held_out_result import held_out_metrics, metric_keys


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
