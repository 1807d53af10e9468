"""The sentences people read first, word for word."""

from __future__ import annotations

import io

import pytest

from turnwise.console import Terminal
from turnwise.reports.run_report import write_report
from turnwise.reports.sentences import (
    cost_sentence,
    duration,
    held_out_sentence,
    interval,
    judge_sentence,
    ood_sentence,
    result_verdict,
    signed,
    verdict,
    verifier_sentence,
)
from turnwise.reports.terminal_summary import print_summary, summary_lines
from turnwise.runs.result_file import Comparison, Result, write_result


def compared(base, after, bounds, tasks=192):
    return Comparison(base=base, after=after, delta_ci95=bounds, tasks=tasks)


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        (
            compared(33.9, 54.7, (14.7, 27.2)),
            "better",
            "Held-out success rose from 33.9 % to 54.7 %: +20.8 points, 95 % interval [+14.7, +27.2] over 192 tasks.",
        ),
        (
            compared(33.9, 20.0, (-20.0, -8.0)),
            "worse",
            "Held-out success fell from 33.9 % to 20.0 %: -13.9 points, 95 % interval [-20.0, -8.0] over 192 tasks.",
        ),
        (
            compared(33.9, 35.0, (-4.0, 6.1)),
            "unclear",
            "Held-out success went from 33.9 % to 35.0 %: +1.1 points, 95 % interval [-4.0, +6.1] over 192 tasks. "
            "Zero is inside the interval: no clear change.",
        ),
        (
            compared(33.9, 35.0, None, None),
            "unclear",
            "Held-out success went from 33.9 % to 35.0 %: +1.1 points, no interval.",
        ),
        (
            Comparison(base=33.9),
            "unfinished",
            "Held-out success after training was not measured; before training it was 33.9 %.",
        ),
        (
            Comparison(after=33.9, tasks=8),
            "unclear",
            "Held-out success is 33.9 % over 8 tasks; it was not measured before training.",
        ),
    ],
)
def test_verdict(change, kind, sentence):
    assert verdict(change).kind == kind
    assert verdict(change).sentence == sentence


def test_an_interval_that_touches_zero_is_not_a_rise():
    assert verdict(compared(30, 35, (0.0, 10.0))).kind == "unclear"


def test_summary_lines(make):
    result = Result.model_validate(make.result() | {"wall_seconds": 457.0})
    assert summary_lines(result, "outputs/pivotrl/seed0/report.html") == [
        "Held-out success rose from 33.9 % to 54.7 %: +20.8 points, 95 % interval [+14.7, +27.2] over 192 tasks.",
        "Out-of-domain mean change: -0.5 points, 95 % interval [-1.6, +0.7] over 8 suites (1,600 items); "
        "from translation -3.5 to choice_b +1.5.",
        "20,480 rollout turns and 225,280 tokens sampled for training, 7 min 37 s in all.",
        "Scale: tiny. A tiny model can show how a method works, but not reach a paper's scores.",
        "Report: outputs/pivotrl/seed0/report.html",
    ]


def test_what_profiles_sampled_stands_beside_what_training_did(make):
    profiled = {"profile_turns": 12_000, "profile_tokens": 60_500, "wall_seconds": 457.0}
    result = Result.model_validate(make.result() | profiled)
    wanted = (
        "20,480 rollout turns and 225,280 tokens sampled for training, 12,000 turns and 60,500 tokens for profiles, "
        "7 min 37 s in all."
    )
    assert cost_sentence(result) == wanted
    older = Result.model_validate(make.result() | {"profile_turns": 12_000, "wall_seconds": 457.0})
    assert cost_sentence(older) == wanted.replace(" and 60,500 tokens for", " for")


def test_the_judge_has_a_line_of_its_own(make):
    judge = {
        "asked": 1200,
        "scored": 1196,
        "failed": 4,
        "failed/timeout": 3,
        "failed/invalid": 1,
        "cached": 400,
        "cost": 0.5,
    }
    result = Result.model_validate(make.result() | {"judge": judge})
    line = (
        "Judge: was asked to score 1,200 replies; 4 got no score (1 invalid, 3 timeout); 400 scores came from the "
        "cache; cost 0.50."
    )
    assert judge_sentence(result) == line and line in summary_lines(result)
    offline = Result.model_validate(make.result() | {"judge": {"asked": 5, "scored": 5, "failed": 0}})
    assert judge_sentence(offline) == "Judge: was asked to score 5 replies; 0 got no score."
    assert judge_sentence(Result.model_validate(make.result())) == ""


def test_the_verifier_has_a_line_of_its_own(make):
    profile = {"judged": 8, "accepted": 0, "exact": 0}
    household = {"judged": 1200, "accepted": 300, "exact": 225, "miss_rate": 0.25, "profile": profile}
    result = Result.model_validate(make.result() | {"verifier": {"household": household}})
    line = (
        "Verifier: household accepts 300 of 1,200 actions; an exact match would reject 25.0 % of the accepted actions; "
        "household (profile) accepts 0 of 8 actions."
    )
    assert verifier_sentence(result) == line and line in summary_lines(result)
    assert verifier_sentence(Result.model_validate(make.result())) == ""


def test_a_run_without_suites_says_so(make):
    result = Result.model_validate(make.result() | {"ood": {}})
    assert ood_sentence(result) == "Out-of-domain suites were not measured."


def test_the_terminal_shows_every_word_and_no_markup(make):
    out = io.StringIO()
    result = Result.model_validate(make.result())
    print_summary(result, "outputs/[red]odd/report.html", Terminal(file=out, width=60, force_terminal=False))
    shown = " ".join(out.getvalue().split())
    for line in summary_lines(result, "outputs/[red]odd/report.html"):
        assert line in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(8.44, "8.4 s"), (59.9, "59.9 s"), (425, "7 min 05 s"), (3599.7, "1 h 00 min"), (7380, "2 h 03 min")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_numbers():
    assert [signed(x) for x in (1.24, -0.04, 0.0, -3.0, None)] == ["+1.2", "0.0", "0.0", "-3.0", "-"]
    assert interval((-1.6, 0.01)) == "[-1.6, 0.0]"


def replies(base, after):
    figure = {"base": base, "after": after, "delta_ci95": [1.0, 30.0]}
    nll = {"base": 2.5, "after": 1.25, "delta": -1.25, "delta_ci95": [-1.5, -1.0]}
    return {"replies": 40, "functional": figure, "strict": figure, "nll": nll}


def judged_on_dialogues():
    in_domain = {"base": 20.0, "after": 35.0, "delta_ci95": [1.0, 30.0], "tasks": 40, "decoding": "sampled"}
    held_out = {
        **replies(20.0, 35.0),
        "dialogues": 16,
        "by_tool": {"book": replies(0.0, 50.0)},
        "by_turn": {"1": replies(1.0, 2.0)},
    }
    return Result(method="pivotrl", env="own.jsonl", scale="tiny", seed=0, in_domain=in_domain, held_out=held_out)


def test_a_run_on_dialogues_is_headed_by_its_held_out_replies():
    told = result_verdict(judged_on_dialogues())
    assert told.kind == "better"
    for figure in ("20.0 %", "35.0 %", "+15.0", "[+1.0, +30.0]", "40 replies", "16 dialogues"):
        assert figure in told.sentence
    for figure in ("2.500", "1.250", "-1.250", "[-1.500, -1.000]"):
        assert figure in held_out_sentence(judged_on_dialogues())


def test_a_run_on_tasks_is_headed_as_before():
    result = Result(
        method="sft", env="household", scale="tiny", seed=0, in_domain=compared(30, 35, (0.0, 10.0)).model_dump()
    )
    assert result_verdict(result) == verdict(result.in_domain)
    assert held_out_sentence(result) == ""


def test_the_report_shows_replies_by_tool_and_by_turn(tmp_path):
    write_result(judged_on_dialogues(), tmp_path)
    page = write_report(tmp_path).read_text()
    for shown in ("own.jsonl", "calls of book", "reply 1 of a dialogue", "50.0 %", "-1.250", "Held-out dialogues"):
        assert shown in page
    assert "In the trained domain" not in page


def test_in_all_is_the_whole_time(make):
    timed, whole = (
        cost_sentence(Result.model_validate(make.result() | more)) for more in ({}, {"wall_seconds": 600.0})
    )
    assert "10 min 00 s in all" in whole
    assert "7 min 37 s" in timed and "in all" not in timed  # an older version timed its phases alone


def test_equal_changes_of_all_suites_are_told_once(make):
    raw = make.result()
    suites = raw["ood"]["base"]
    raw["ood"] |= {"after": dict(suites), "mean_change": 0.0}
    assert ood_sentence(Result.model_validate(raw)).endswith("; 0.0 in every suite.")
