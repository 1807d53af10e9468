"""The server whose tokens take time counts what it decodes, and the benchmark over it ends with its last line."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


def test_a_reply_is_decided_by_its_seed() -> None:
    from slow_server import ALIKE, CALLS, END, reply

    body = {"seed": 5, "prompt": [3, 4], "max_tokens": 400}
    assert reply(body, 40, 1.0) == reply({**body, "prompt": [3, 9]}, 40, 1.0) != reply({**body, "seed": 6}, 40, 1.0)
    lengths = [len(reply({**body, "seed": seed}, 40, 1.0)) for seed in range(4000)]
    assert min(lengths) >= 4 and max(lengths) == 400
    assert sum(lengths) / len(lengths) == pytest.approx(40, rel=0.1)
    assert reply({**body, "max_tokens": 5, "seed": 1}, 1000, 0.1)[-1] != END  # it breaks off
    assert {reply({**body, "seed": seed, "prompt": [ALIKE]}, 40, 1.0)[0] for seed in range(50)} == {CALLS[0]}


def test_closing_the_connection_cancels_the_request() -> None:
    """Of two long requests one is given up; the other is answered, and no token is lost from the counts."""
    from slow_server import Slow, reply

    bodies = [{"model": "policy", "prompt": [1], "seed": seed, "max_tokens": 2000} for seed in (1, 2)]
    lengths = [len(reply(body, 1000, 0.1)) for body in bodies]

    async def ask() -> tuple[dict[str, float], list[int]]:
        slow = Slow(first=2000, half=1e9, rows=8, mean=1000, sigma=0.1)
        runner = web.AppRunner(slow.app(), handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession() as session:

            async def post(body: dict[str, object]) -> list[int]:
                async with session.post(f"{url}/v1/completions", json=body) as answer:
                    return (await answer.json())["choices"][0]["token_ids"]

            kept, given_up = asyncio.create_task(post(bodies[0])), asyncio.create_task(post(bodies[1]))
            while slow.decoding.running < 2:
                await asyncio.sleep(0.005)
            given_up.cancel()
            ids = await kept
            while slow.decoding.running:
                await asyncio.sleep(0.005)
            async with session.get(f"{url}/tokens") as answer:
                counts = await answer.json()
        await runner.cleanup()
        return counts, ids

    counts, ids = asyncio.run(ask())
    assert len(ids) == lengths[0]
    assert counts["saved"] > 0 and counts["thrown"] + counts["saved"] == pytest.approx(lengths[1])
    assert counts["decoded"] == pytest.approx(lengths[0] + counts["thrown"])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["stub", "tree"])
def test_last_line(engine: str, monkeypatch, capsys, tmp_path) -> None:
    saved = tmp_path / "result.json"
    small = ["--engine", engine, "--iterations", "4", "--rounds", "1", "--groups", "2", "--group", "3", "--turns", "4"]
    times = ["--latency", "0.01", "--update", "0.05", "--first", "2000", "--horizon", "5", "--max-tokens", "60"]
    monkeypatch.setattr(sys, "argv", ["longtail.py", *small, *times, "--json", str(saved)])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(FOLDER / "longtail.py"), run_name="__main__")
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == json.loads(saved.read_text())
    assert last["x_rounds"] > 0 and last["x_staleness"]["0"] == 1
    assert set(last["x_staleness"]) == {"0", "1", "2"}
    free, rounds = last["ways"]["free, staleness 0"], last["ways"]["rounds, staleness 0"]
    assert free["turns"] > rounds["turns"] > 0  # four collections and one
    gated = last["ways"]["rounds, staleness 0, gate"]
    assert gated["turns"] <= rounds["turns"]
    if engine == "stub":
        assert gated["turns"] < rounds["turns"] and last["between_rounds_tokens_pct"] > 0
        assert last["bound_ratio"] > 0.99 and last["cancelled_tokens_pct"] >= last["uncancelled_tokens_pct"]
    else:
        assert last["bound_ratio"] is None and "bound_ratio" in last["absent"]
