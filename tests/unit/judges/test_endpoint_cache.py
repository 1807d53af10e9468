"""The cache of a judge: which questions are the same, and judges in processes of their own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.judges.test_endpoint import Make, MakeJudge


def test_equal_content_is_asked_once(judge_server: ModuleType, make_judge: MakeJudge, candidate: Make) -> None:
    with judge_server.serve(delay=0.05) as server:
        judge = make_judge(server.url)
        assert judge([candidate(0, id=f"twin{n}") for n in range(6)]) == [0.5] * 6
        assert server.calls == 1
        report = judge.report()
        assert (report["asked"], report["scored"], report["shared"]) == (6, 6, 5)


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
        assert (report["cached"], report["calls"], report["cost"]) == (10, 0, 0)


@pytest.mark.parametrize(
    "changes",
    [{"model": "other"}, {"temperature": 0.5}, {"max_tokens": 99}, {"structured": "none"}, {"extra": {"seed": 1}}],
)
def test_another_setting_is_another_question(
    changes: dict[str, Any], judge_server: ModuleType, make_judge: MakeJudge, candidate: Make, tmp_path: Path
) -> None:
    path = str(tmp_path / "cache.sqlite")
    with judge_server.serve() as server:
        make_judge(server.url, cache=path)([candidate()])
        judge = make_judge(server.url, cache=path)
        for name, value in changes.items():
            setattr(judge, name, value)
        judge([candidate()])
        assert server.calls == 2


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


RUN = """
import json, sys
from turnwise.judges.judge import Candidate
from turnwise.judges.client import ChatClient
from turnwise.judges.endpoint import EndpointJudge
judge = EndpointJudge(ChatClient(sys.argv[1], concurrency=4), "naive", cache=sys.argv[2])
same = dict(thinking="", calls=(), reference=None, reference_calls=())
candidates = [Candidate(id="c", prompt=({"role": "user", "content": str(n)},), text="t", **same) for n in range(40)]
if sys.argv[3] == "leave":
    judge.submit(candidates[0])
    sys.exit(0)
print(json.dumps(judge(candidates)))
judge.close()
"""


def start(url: str, cache: str, how: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", RUN, url, cache, how], stdout=subprocess.PIPE, text=True)


def test_two_processes_share_a_cache_without_a_wrong_or_lost_entry(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make, tmp_path: Path
) -> None:
    """The server's mood changes with every call, so an answer that one process used and the other lost would show."""
    path = str(tmp_path / "cache.sqlite")
    moods = random.Random(0)
    with judge_server.serve(answer=lambda messages: json.dumps({"score": moods.random()}), delay=0.005) as server:
        runs = [start(server.url, path, "ask") for _ in range(2)]
        scores = [json.loads(run.communicate()[0]) for run in runs]
        assert scores[0] == scores[1]
        assert len(set(scores[0])) > 3
        assert len(server.seen) == 40
        before = server.calls
        same: dict[str, Any] = {"text": "t", "thinking": "", "calls": (), "reference": None, "reference_calls": ()}
        asked = [candidate(prompt=({"role": "user", "content": str(n)},), **same) for n in range(40)]
        assert make_judge(server.url, cache=path)(asked) == scores[0]
        assert server.calls == before


def test_a_cache_that_fails_costs_the_entry_and_not_the_score(
    judge_server: ModuleType, make_judge: MakeJudge, candidate: Make, tmp_path: Path
) -> None:
    with judge_server.serve() as server:
        judge = make_judge(server.url, cache=str(tmp_path / "cache.sqlite"))
        assert judge([candidate(0)]) == [0.5]
        assert judge._store is not None
        judge._store._connection.execute("DROP TABLE answers")
        assert judge([candidate(0), candidate(1)]) == [0.5, 0.5]
        assert judge.report()["cache_errors"] == 4


def test_a_judge_that_nobody_closes_does_not_hold_up_the_end(judge_server: ModuleType, tmp_path: Path) -> None:
    with judge_server.serve(lambda body, nth: "hang") as server:
        left = start(server.url, str(tmp_path / "cache.sqlite"), "leave")
        assert left.wait(timeout=60) == 0  # the time limit of its question is 120 s
        left.communicate()
