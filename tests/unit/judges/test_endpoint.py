"""The judge against a real HTTP server that fails in every way."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmarks.judge_injections import attacked

from turnwise.judges.endpoint import EndpointJudge
from turnwise.judges.judge import Candidate
from turnwise.judges.prompt import question
from turnwise.judges.rubric import load_rubric

Make = Callable[..., Candidate]
MakeJudge = Callable[..., EndpointJudge]

# what each fault is counted as, and how many requests two attempts and one repair make of it
KINDS = {
    "refuse": ("unreachable", 2),
    "hang": ("timeout", 2),
    "429": ("rate_limited", 2),
    "500": ("server_error", 2),
    "404": ("rejected", 1),
    "401": ("rejected", 1),
    "302:http://127.0.0.1:1/": ("rejected", 1),
    "garbage": ("garbage", 2),
    "stream": ("garbage", 2),
    "cut": ("unreachable", 2),
    "out_of_range": ("out_of_range", 2),
    "out_of_range:-1": ("out_of_range", 2),
    "prose": ("invalid", 2),
    "empty": ("invalid", 2),
}


def patience(fault: str) -> dict[str, float]:
    return {"attempt_limit": 1.0} if fault == "hang" else {}


def until(condition: Callable[[], bool]) -> None:
    """Wait for it; a machine may be slow."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def town(body: dict[str, Any]) -> int:
    return int(body["messages"][1]["content"].split("weather in town ")[1].split("?")[0])


def test_scores_come_back_in_order(judge_server: ModuleType, make_judge: MakeJudge, candidate: Make) -> None:
    # the true call has the words name, weather, arguments, town and n; the reply lacks name and arguments
    with judge_server.serve() as server:
        judge = make_judge(server.url)
        replies = [candidate(0), candidate(1, text="nothing of it"), candidate(2, text="weather town 2 name arguments")]
        assert judge(replies) == [0.5, 0.25, 0.75]
        report = judge.report()
    assert server.calls == 3
    assert {name: report[name] for name in ("asked", "scored", "failed", "cached", "calls", "answered")} == {
        "asked": 3,
        "scored": 3,
        "failed": 0,
        "cached": 0,
        "calls": 3,
        "answered": 3,
    }
    body = server.bodies[0]
    assert (body["model"], body["temperature"]) == ("naive", 0.0)
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["score"]


@pytest.mark.parametrize("fault", KINDS)
def test_a_fault_that_stays_is_no_score_and_is_counted(
    fault: str, judge_server: ModuleType, make_judge: MakeJudge, candidate: Make, tmp_path: Path
) -> None:
    kind, requests = KINDS[fault]
    path = str(tmp_path / "cache.sqlite")
    with judge_server.serve(lambda body, nth: fault if town(body) == 1 else None) as server:
        judge = make_judge(server.url, patience(fault), cache=path)
        assert judge([candidate(n) for n in range(3)]) == [0.5, None, 0.5]
        report = judge.report()
        assert (report["scored"], report["failed"], report[f"failed/{kind}"]) == (2, 1, 1)
        assert server.faults[fault] == requests
        if kind in ("invalid", "out_of_range"):
            assert report["repaired"] == 1
        else:
            assert report[f"faults/{kind}"] == requests
        server.fault = lambda body, nth: None
        assert make_judge(server.url, cache=path)([candidate(1)]) == [0.5], "a failure must not be stored"


@pytest.mark.parametrize("fault", [fault for fault, (_, requests) in KINDS.items() if requests == 2])
def test_a_fault_that_passes_costs_an_attempt_and_nothing_else(
    fault: str, judge_server: ModuleType, make_judge: MakeJudge, candidate: Make
) -> None:
    with judge_server.serve(lambda body, nth: fault if nth == 1 else None) as server:
        judge = make_judge(server.url, patience(fault))
        assert judge([candidate(n) for n in range(3)]) == [0.5, 0.5, 0.5]
        assert (judge.report()["failed"], server.faults[fault], server.calls) == (0, 3, 6)


def test_nobody_listens(make_judge: MakeJudge, candidate: Make) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        judge = make_judge(f"http://127.0.0.1:{free.getsockname()[1]}/v1")
        assert judge([candidate(n) for n in range(4)]) == [None] * 4
    assert judge.report()["failed/unreachable"] == 4


def test_a_dead_endpoint_is_left_alone_and_asked_again_later(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make
) -> None:
    with judge_server.serve(lambda body, nth: "500") as server:
        judge = make_judge(
            server.url, {"concurrency": 1, "attempts": 1, "give_up_after": 3, "cooldown": 60.0, "backoff": 0.0}
        )
        assert judge([candidate(n) for n in range(10)]) == [None] * 10
        assert server.calls == 3
        report = judge.report()
        assert (report["failed/server_error"], report["failed/skipped"]) == (3, 7)
        server.fault = lambda body, nth: None
        assert judge([candidate(20)]) == [None]
        judge.client._shut_until = time.monotonic()  # a minute later
        assert judge([candidate(20), candidate(21)]) == [0.5, 0.5]


def test_retry_after_is_waited_for_by_everyone(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make
) -> None:
    with judge_server.serve(lambda body, nth: "429:0.4" if town(body) == 0 and nth == 1 else None) as server:
        judge = make_judge(server.url, {"concurrency": 1})
        began = time.monotonic()
        assert judge([candidate(n) for n in range(2)]) == [0.5, 0.5]
        assert time.monotonic() - began >= 0.4
        assert server.times[1] - server.times[0] >= 0.39


def test_retry_after_may_be_a_date(judge_server: ModuleType, make_judge: MakeJudge, candidate: Make) -> None:
    later = formatdate(time.time() + 1.5, usegmt=True)  # whole seconds: at least 0.5 s from now
    with judge_server.serve(lambda body, nth: f"429:{later}" if nth == 1 else None) as server:
        assert make_judge(server.url)([candidate()]) == [0.5]
        assert server.times[1] - server.times[0] >= 0.3


def test_a_wait_beyond_the_limit_is_not_begun(judge_server: ModuleType, make_judge: MakeJudge, candidate: Make) -> None:
    with judge_server.serve(lambda body, nth: "429:3600") as server:
        judge = make_judge(server.url)
        began = time.monotonic()
        assert judge([candidate()]) == [None]
        assert time.monotonic() - began < 20
        assert (server.calls, judge.report()["failed/rate_limited"]) == (1, 1)


def test_the_time_limit_holds_over_all_attempts(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make
) -> None:
    with judge_server.serve(lambda body, nth: "hang") as server:
        judge = make_judge(server.url, {"attempts": 100, "attempt_limit": 0.2, "time_limit": 0.7})
        began = time.monotonic()
        assert judge([candidate()]) == [None]
        assert time.monotonic() - began < 5


def test_questions_run_beside_the_caller_and_no_more_than_concurrency_at_once(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make
) -> None:
    go = threading.Event()

    def answer(messages: Any) -> str:
        go.wait(20)
        return str(judge_server.model(messages))

    with judge_server.serve(answer=answer) as server:
        judge = make_judge(server.url, {"concurrency": 5})
        futures = [judge.submit(candidate(n)) for n in range(12)]
        until(lambda: server.now == 5)  # while this thread is free
        time.sleep(0.1)
        assert (server.most, server.calls) == (5, 5)
        assert not any(future.done() for future in futures)
        go.set()
        assert [future.result() for future in futures] == [0.5] * 12
        assert (server.most, server.calls) == (5, 12)


def test_closing_answers_what_is_open_and_the_judge_can_go_on(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make
) -> None:
    with judge_server.serve(lambda body, nth: "hang" if nth == 1 else None) as server:
        judge = make_judge(server.url, {"attempt_limit": 30.0, "time_limit": 30.0, "concurrency": 2})
        futures = [judge.submit(candidate(n)) for n in range(4)]
        until(lambda: server.now == 2)
        judge.close()
        assert [future.result(timeout=1) for future in futures] == [None] * 4
        assert judge.report()["failed/closed"] == 4
        server.fault = lambda body, nth: None
        assert judge([candidate(0)]) == [0.5]
        judge.close()
    assert "judge" not in {thread.name for thread in threading.enumerate()}


def test_a_judge_that_was_closed_can_ask_again_with_questions_that_wait_for_each_other(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make
) -> None:
    with judge_server.serve(delay=0.01) as server:
        judge = make_judge(server.url, {"concurrency": 1})
        for first in (0, 4):
            assert judge([candidate(n) for n in range(first, first + 4)]) == [0.5] * 4
            judge.close()


def test_no_attack_wins_through_the_fence_and_most_win_without_it(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make
) -> None:
    wrong = candidate(0, text="I do not know.")
    attacks = [attack for _, attack in attacked(wrong)]
    with judge_server.serve() as server:
        judge = make_judge(server.url, {"concurrency": 4})
        assert judge([wrong]) == [0.25]
        scores = judge(attacks)
        assert judge.report()["failed"] == 0
    assert [attack.id for attack, score in zip(attacks, scores, strict=True) if score != 0.25] == []

    rubric = load_rubric("tool_use_v1")

    def bare(name: str, text: str, code: str) -> str:
        return f"<<<BEGIN {name}>>>\n{text}\n<<<END {name}>>>"

    unfenced = [json.loads(judge_server.model(question(rubric, attack, "", bare)))["score"] for attack in attacks]
    assert sum(score > 0.25 for score in unfenced) > len(attacks) / 3
    ignoring = [
        json.loads(judge_server.model(question(rubric, attack, "c0de"), "ignored"))["score"] for attack in attacks
    ]
    assert sum(score > 0.25 for score in ignoring) > len(attacks) / 2
