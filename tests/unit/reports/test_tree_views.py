"""Rollouts as shown: merged, nested, clipped and bounded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.reports.run_files import MESSAGE_LIMIT, ReportedRun, clip, goal, tree_views
from turnwise.reports.run_page import in_domain_rows, so_far
from turnwise.runs.result_file import InDomain, Result


def test_equal_samples_become_one_with_a_count(make):
    texts = ["look", "go to desk 1", "look", "look"]
    turns = [make.turn(-1, text, advantage) for text, advantage in zip(texts, [1, -1, 1, -1], strict=True)]
    tree = make.deep_tree() | {"turns": turns, "rewards": {"total": [1.0, 0.0, 1.0, 0.0]}}
    (view,) = tree_views([tree])
    shown = [(step.text, step.times, step.sign, step.reward) for step in view.actions]
    assert shown == [("look", 2, "up", 1.0), ("go to desk 1", 1, "down", 0.0), ("look", 1, "down", 0.0)]
    assert (view.samples, view.mean) == (4, 0.5)


def test_a_shared_turn_is_shown_once_and_then_branches(make):
    (view,) = tree_views([make.deep_tree(depth=3)])
    (root,) = view.branches
    assert [step.text for step in root.steps] == ["go to desk 1"]
    assert [[step.text for step in branch.steps] for branch in root.branches] == [
        ["step 0", "step 1", "step 2"],
        ["look"],
    ]
    assert [branch.total for branch in root.branches] == [1.0, 0.0]
    assert view.actions == []


def test_a_run_on_dialogues_that_is_under_way_shows_its_held_out_replies():
    run = ReportedRun(
        Path("own"), metrics={"eval/held_out/functional": {0: 12.5, 8: 50.0}, "eval/held_out/strict": {0: 1.0}}
    )
    assert [value for value, _ in so_far(run)] == ["12.5 %", "50.0 %"]


def test_named_rewards_stand_beside_the_total(make):
    tree = make.deep_tree(depth=0) | {
        "turns": [make.turn(-1, "a"), make.turn(-1, "b")],
        "rewards": {"total": [1.4, 0.5], "outcome": [1.0, 0.0], "judge": [0.4, 0.5]},
    }
    (view,) = tree_views([tree])
    assert [step.parts for step in view.actions] == ["outcome 1.00, judge 0.40", "outcome 0.00, judge 0.50"]


def test_rewards_that_do_not_match_the_leaves_are_not_guessed(make):
    (view,) = tree_views([make.deep_tree() | {"rewards": {"total": [1.0]}}])
    assert view.mean is None
    assert [branch.total for branch in view.branches[0].branches] == [None, None]


@given(st.lists(st.one_of(st.integers(-3, 12), st.none(), st.text(max_size=2)), max_size=10))
def test_any_parents_give_a_tree_of_all_turns(parents):
    turns = [{"parent": parent, "text": str(i)} for i, parent in enumerate(parents)]
    (view,) = tree_views([{"state": {"id": "s"}, "turns": turns, "rewards": None}])
    shown, todo = [], list(view.branches)
    while todo:
        branch = todo.pop()
        shown += [step.text for step in branch.steps]
        todo += branch.branches
    assert sorted(shown, key=int) == [str(i) for i in range(len(parents))]


def test_a_long_chain_is_cut_and_says_so(make):
    (view,) = tree_views([make.deep_tree(depth=5000)])
    assert "4842 later turns" in view.note


def test_the_budget_bounds_what_is_shown(make):
    tree = make.local_tree(np.random.default_rng(0), samples=4)
    for i, turn in enumerate(tree["turns"]):
        turn["text"] = f"{i} " + "x" * 100_000
    views = tree_views([tree] * 400)
    assert 50 < len(views) < 200
    assert all(len(step.text) < MESSAGE_LIMIT + 60 for view in views for step in view.actions)


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


def test_a_tree_tells_the_rewards_of_its_leaves(make):
    (view,) = tree_views([make.deep_tree()])
    assert view.totals == [1.0, 0.0] and view.goal.startswith("Your task is to: put a hot mug")


def test_a_failure_of_the_environment_is_shown_and_is_no_reward():
    turns = [
        {"parent": -1, "text": "a", "observation": "", "reward": 0.0, "info": {"fault": "no answer within 3 s"}},
        {"parent": -1, "text": "b", "observation": "ok", "reward": 0.0, "info": {"won": True}},
    ]
    tree = {"state": {"id": "s", "messages": []}, "turns": turns, "rewards": {"total": [None, 1.0]}}
    (view,) = tree_views([tree])
    failed, won = (branch.steps[0] for branch in view.branches)
    assert (failed.observation, failed.reward) == ("The environment failed: no answer within 3 s", None)
    assert (won.observation, won.reward) == ("ok", 1.0)
    assert view.note == "The environment failed in 1 of the 2 samples; they have no reward."
