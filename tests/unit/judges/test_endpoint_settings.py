"""Settings of a judge: its key, its ranges, and what it spends."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.judges.test_endpoint import Make, MakeJudge, town

from turnwise.judges.client import ChatClient
from turnwise.judges.endpoint import EndpointJudge
from turnwise.judges.judge import Judge
from turnwise.judges.offline import OfflineJudge


def test_spend_rates_and_budget(judge_server: ModuleType, make_judge: MakeJudge, candidate: Make) -> None:
    with judge_server.serve(delay=0.02) as server:  # which says 1000 tokens in and 10 out
        judge = make_judge(server.url, {"concurrency": 1, "price_in": 2.0, "price_out": 5.0, "budget": 0.005})
        assert (
            judge([candidate(n) for n in range(5)]) == [0.5] * 3 + [None] * 2
        )  # 0.00205 an answer: the third is the last
        report = judge.report()
        assert report["cost"] == pytest.approx(3 * 0.00205)
        assert (report["prompt_tokens"], report["completion_tokens"], report["unmetered"]) == (3000, 30, 0)
        assert report["failed/budget"] == 2
        assert 0.02 <= report["latency_p50"] <= report["latency_p95"] < 30
        assert report["busy_seconds"] >= 0.06
        assert report["calls_per_s"] == pytest.approx(3 / report["busy_seconds"])
        assert report["tokens_per_s"] == pytest.approx(3030 / report["busy_seconds"])
        server.usage = False
        judge.client.budget = None
        judge([candidate(9)])
        assert judge.report()["unmetered"] == 1
        judge.client.budget = 100.0
        assert judge([candidate(10)]) == [None]  # no budget can be kept where tokens are not counted


@pytest.mark.parametrize("count", [2**40, -1, None, "many"])
def test_an_impossible_number_of_tokens_is_no_number(count: object) -> None:
    client = ChatClient("http://127.0.0.1:1/v1", price_in=2.0, budget=1.0)
    choice = {"message": {"content": "8"}, "finish_reason": "stop"}
    client._read(json.dumps({"choices": [choice], "usage": {"prompt_tokens": count, "completion_tokens": 1}}).encode())
    assert (client.tally.unmetered, client.tally.prompt_tokens, client.cost) == (1, 0, 0.0)


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
    assert "status 401: the server refuses the key; set the environment variable" in caplog.text
    assert "secret words of the server" not in caplog.text
    for text in shown:
        assert secret not in text
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_without_a_key_none_is_sent(judge_server: ModuleType, make_judge: MakeJudge, candidate: Make) -> None:
    with judge_server.serve() as server:
        make_judge(server.url, {"key_variable": "TURNWISE_TEST_NO_SUCH_KEY"})([candidate()])
        assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "ftp://host/v1"}, "url must begin with http:// or https://"),
        ({"url": "host:8000"}, "url must begin with http:// or https://"),
        (
            {"url": "http://me:pass@host/v1"},
            "url must not contain a user, password or query; put the key into the environment variable",
        ),
        ({"url": "http://host/v1?key=pass"}, "url must not contain a user, password or query"),
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"attempts": 0}, "attempts must be at least 1"),
        ({"time_limit": 0}, "time_limit must be above 0 seconds"),
        ({"backoff": -1}, "backoff must be at least 0"),
        ({"budget": -1}, "budget must be at least 0"),
        ({"budget": 5.0}, r"budget=5 has no effect while both prices are 0; set price_in"),
    ],
)
def test_ranges_of_the_client(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ChatClient(**{"url": "http://host/v1", **settings})
    assert "pass@" not in str(caught.value)
    assert "key=pass" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": ""}, "model must name"),
        ({"max_tokens": 1}, "max_tokens must be at least 16"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"rubric": "none"}, "there is no rubric 'none'"),
        ({"extra": {"messages": []}}, "extra must not set messages"),
    ],
)
def test_ranges_of_the_judge(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EndpointJudge(**{"client": ChatClient("http://host/v1"), "model": "m", **settings})


def test_both_judges_are_judges(make_judge: MakeJudge) -> None:
    judges: list[Judge] = [OfflineJudge(), make_judge("http://127.0.0.1:1/v1")]
    for judge in judges:
        assert {"asked", "scored", "failed"} <= judge.report().keys()
