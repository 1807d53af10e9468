"""Labels and keys of metrics."""

from __future__ import annotations

from turnwise.reports.metric_labels import success_keys


def test_greedy_success_is_shown_only_if_no_episodes_were_sampled() -> None:
    greedy = ["eval/seen/success_greedy", "eval/unseen/success_greedy", "train/loss"]
    assert success_keys(greedy) == {"seen": greedy[0], "unseen": greedy[1]}
    assert success_keys([*greedy, "eval/seen/success"]) == {"seen": "eval/seen/success"}
    assert success_keys(["train/loss"]) == {}
