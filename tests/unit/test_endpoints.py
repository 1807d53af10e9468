from __future__ import annotations

import asyncio
import time

import pytest

from turnwise.endpoints import MAX_PAUSE, Fault, Kind, Retries, check_url, retry_after


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://host/v1", "http://[::1]:80/v1"])
def test_addresses(url: str) -> None:
    check_url(url, "KEY")


@pytest.mark.parametrize(
    "url",
    [
        "host:80",
        "ftp://host",
        "http://",
        "",
        "http://u:p@host",
        "http://h?k=1",
        "http://h#f",
        "http://h:99999",
        "http://h:0/v1",
        "http://h:x",
        "u:p@host:80",
    ],
)
def test_what_is_none_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="url") as caught:
        check_url(url, "KEY")
    assert "u:p" not in str(caught.value) and "k=1" not in str(caught.value)


def attempts(retries: Retries, *faults: Fault) -> int:
    """How many requests were sent, the first of which fail with ``faults`` and the last of which succeeds if possible."""
    left, sent, told = list(faults), [], list[Fault]()

    async def request() -> None:
        sent.append(time.monotonic())
        if left:
            raise left.pop(0)

    try:
        asyncio.run(retries.send(request, told.append))
    except Fault:
        assert len(told) == len(sent)
    assert told == list(faults[: len(told)])
    return len(sent)


@pytest.mark.parametrize(
    ("kind", "patient", "sent"),
    [
        *(("server_error", patient, 3) for patient in (False, True)),
        *((kind, False, 3) for kind in ("unreachable", "rate_limited", "timeout", "garbage", "missing")),
        *((kind, True, 10) for kind in ("unreachable", "rate_limited")),
        *(("rejected", patient, 1) for patient in (False, True)),
    ],
)
def test_faults_are_tried_again_as_often_as_makes_sense(kind: Kind, patient: bool, sent: int) -> None:
    retries = Retries(attempts=3, backoff=0.0, patient=patient)
    assert attempts(retries, *(Fault(kind, "") for _ in range(9))) == sent


def test_pauses_are_those_that_the_server_asks_for_within_the_limit() -> None:
    began = time.monotonic()
    assert attempts(Retries(backoff=0.0), Fault("server_error", "", after=0.2)) == 2
    assert time.monotonic() - began >= 0.2
    assert attempts(Retries(limit=1.0), Fault("rate_limited", "", after=60.0)) == 1
    assert attempts(Retries(limit=0.1, backoff=0.05, patient=True), *(Fault("unreachable", "") for _ in range(99))) < 5
    assert time.monotonic() - began < 5


def test_a_server_cannot_ask_for_a_pause_without_end() -> None:
    assert retry_after("99999999") == retry_after("inf") == MAX_PAUSE
