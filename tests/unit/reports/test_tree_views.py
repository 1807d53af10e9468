"""Rollouts as shown: merged, nested, clipped and bounded."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.runs.result_file import InDomain, Result
from turnwise_study.run_files import ReportedRun, clip, goal
from turnwise_study.run_page import in_domain_rows, so_far


def test_a_run_on_dialogues_that_is_under_way_shows_its_held_out_replies():
    run = ReportedRun(
        Path("own"), metrics={"eval/held_out/functional": {0: 12.5, 8: 50.0}, "eval/held_out/strict": {0: 1.0}}
    )
    assert [value for value, _ in so_far(run)] == ["12.5 %", "50.0 %"]


@given(st.text(max_size=300), st.integers(30, 200))
def test_clip_keeps_both_ends(text, limit):
    shown = clip(text, limit)
    if len(text) <= limit:
        assert shown == text
    else:
        assert shown.startswith(text[: limit // 2])
        assert shown.endswith(text[-(limit // 4) :])
        assert f"{len(text) - limit * 2 // 3 - limit // 3:,} characters left out" in shown


def test_the_headline_is_not_listed_twice(make):
    rows = in_domain_rows(Result.model_validate(make.result()).in_domain)
    assert [(mode, split) for mode, split, _ in rows] == [
        ("greedy", "all held-out"),
        ("greedy", "seen"),
        ("greedy", "unseen"),
        ("sampled", "all held-out"),
        ("pass@1", "all held-out"),
        ("pass@4", "all held-out"),
    ]
    only = in_domain_rows(InDomain(base=1, after=2, pass_at_k={"8": 12.0}))
    assert [(mode, part.base, part.after) for mode, _, part in only] == [("headline", 1, 2), ("pass@8", None, 12.0)]


def test_subsets_stand_below_the_splits_and_their_mean_last():
    def compared(base, after):
        return {"base": base, "after": after, "delta": after - base, "tasks": 4}

    by_subset = {"base": compared(10, 20), "long_context": compared(0, 40)}
    result = InDomain.model_validate(
        {**compared(5, 30), "decoding": "sampled", "by_subset": by_subset, "subset_mean": compared(5, 30)}
    )
    rows = [(mode, part, one.after) for mode, part, one in in_domain_rows(result)]
    assert rows == [
        ("headline", "all held-out", 30),
        ("headline", "subset base", 20),
        ("headline", "subset long_context", 40),
        ("headline", "mean of subsets", 30),
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("You are in a room.\nYour task is to: put a hot mug in safe.", "Your task is to: put a hot mug in safe."),
        ("Book me a table\nfor two.", "Book me a table for two."),
        ("Tools: a, b.\nQuestion: who?\nAnswer briefly.", "Question: who?"),
        ("", ""),
    ],
)
def test_a_rollout_begins_with_what_its_task_asks_for(text, wanted):
    messages = [("system", "You act. Task: none."), ("user", text), ("assistant", "look"), ("user", "Task: another")]
    assert goal(messages) == wanted
    assert goal(messages[:1]) == ""
    assert len(goal([("user", "x" * 5_000)])) < 400
