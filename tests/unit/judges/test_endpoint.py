"""A judging model and its cache."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.judges.injections import attacked

from turnwise.errors import InputError
from turnwise.judges.endpoint import EndpointJudge, JudgeCache
from turnwise.judges.judge import Candidate, judge_question, load_rubric

# -- the cache ---------------------------------------------------------------------------------------------------------


WRITE = """
import sys
from turnwise.judges.endpoint import JudgeCache, key_of
cache = JudgeCache(sys.argv[1])
n = 0
while True:
    key = key_of({"n": n, "filler": "x" * 1000})
    cache.put(key, "test", {"n": n, "filler": "y" * 3000})
    print(key, n, flush=True)
    n += 1
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_nothing_that_was_stored_is_lost_to_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    for _ in range(2):  # the second process finds what the first one left
        writer = start(WRITE, str(path))
        assert writer.stdout is not None
        told = [writer.stdout.readline().split() for _ in range(150)]
        os.kill(writer.pid, signal.SIGKILL)
        told += [line.split() for line in writer.stdout.read().splitlines() if line.endswith(tuple("0123456789"))]
        writer.wait()
        writer.stdout.close()
        cache = JudgeCache(path)
        for key, n in told:
            assert cache.get(key) == {"n": int(n), "filler": "y" * 3000}
        cache.close()
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


@pytest.mark.parametrize("content", [b"not a database at all, but longer than a header" * 100, None, "other"])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: bytes | str | None) -> None:
    path = tmp_path / "cache.sqlite"
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE theirs (a)")
        connection.close()
    with pytest.raises(InputError, match=r"cache\.sqlite"):
        JudgeCache(path)
    if isinstance(content, bytes):
        assert path.read_bytes() == content
    if content == "other":
        with sqlite3.connect(path) as connection:
            assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
        connection.close()


# -- the judge ---------------------------------------------------------------------------------------------------------


Make = Callable[..., Candidate]
MakeJudge = Callable[..., EndpointJudge]

# what each fault is counted as, and how many requests two attempts make of it
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
    "out_of_range": ("out_of_range", 1),
    "out_of_range:-1": ("out_of_range", 1),
    "prose": ("invalid", 1),
    "empty": ("invalid", 1),
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
        if kind not in ("invalid", "out_of_range"):
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

    unfenced = [json.loads(judge_server.model(judge_question(rubric, attack, "", bare)))["score"] for attack in attacks]
    assert sum(score > 0.25 for score in unfenced) > len(attacks) / 3
    ignoring = [
        json.loads(judge_server.model(judge_question(rubric, attack, "c0de"), "ignored"))["score"] for attack in attacks
    ]
    assert sum(score > 0.25 for score in ignoring) > len(attacks) / 2


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_a_second_run_makes_no_call(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make, tmp_path: Path
) -> None:
    path = str(tmp_path / "cache.sqlite")
    replies = [candidate(n) for n in range(10)]
    with judge_server.serve(answer=lambda messages: json.dumps({"score": random.random()})) as server:
        first = make_judge(server.url, cache=path)(replies)
        assert server.calls == 10
        judge = make_judge(server.url, cache=path)
        assert judge(replies) == first
        assert server.calls == 10
        report = judge.report()
        assert (report["cached"], report["calls"]) == (10, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "other"},
        {"reference": "other"},
        {"reference": None},
        {"reference_calls": ()},
        {"prompt": ({"role": "user", "content": "weather in town 0? now"},)},
        {"tools": ({"name": "f"},)},
    ],
)
def test_other_content_is_another_question(
    changes: dict[str, Any], judge_server: ModuleType, make_judge: MakeJudge, candidate: Make
) -> None:
    with judge_server.serve() as server:
        make_judge(server.url)([candidate(), candidate(**changes)])
        assert server.calls == 2


# -- settings, keys and the first question ----------------------------------------------------------------------------


def test_the_key_is_sent_and_shown_nowhere(
    judge_server: ModuleType,
    make_judge: MakeJudge,
    candidate: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    secret = "sk-0123-very-secret"
    monkeypatch.setenv("MY_JUDGE", secret)
    caplog.set_level(0)
    with judge_server.serve(lambda body, nth: "401" if town(body) else None) as server:
        judge = make_judge(server.url, {"key_variable": "MY_JUDGE"}, cache=str(tmp_path / "cache.sqlite"))
        assert judge([candidate(0), candidate(1)]) == [0.5, None]
        assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {secret}"}
        shown = [caplog.text, repr(judge), repr(judge.client), json.dumps(judge.report()), *capfd.readouterr()]
        judge.close()
    shown += [str(vars(record)) for record in caplog.records]
    assert "MY_JUDGE" in caplog.text
    assert "secret words of the server" not in caplog.text
    for text in shown:
        assert secret not in text
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


@pytest.mark.parametrize("fault", ["404", "401", "500", "garbage", "prose"])
def test_a_judge_that_cannot_answer_ends_the_run_at_its_first_question(
    fault: str, judge_server: ModuleType, make_judge: MakeJudge, candidate: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-only-the-server-may-see-this"
    monkeypatch.setenv("TURNWISE_JUDGE_KEY", key)
    with judge_server.serve(lambda body, nth: fault) as server, pytest.raises(InputError) as refused:
        make_judge(server.url).prove(candidate())
    message = str(refused.value)
    assert server.url in message and "judge.model" in message and key not in message and message.isprintable()
