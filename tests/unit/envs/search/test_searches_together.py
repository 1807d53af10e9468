"""Searches through a retrieval server: the steps of several rollouts wait for the server at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from aiohttp import web

from turnwise.env import Step
from turnwise.rollouts.environment_steps import Answers
from turnwise_worlds.search import SearchEnv

COUNT = 8


@pytest.fixture
def url() -> Iterator[str]:
    """The address of a server that answers only when ``COUNT`` searches are waiting."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    places: list[str] = []

    async def serve() -> None:
        waiting, all_here = [0], asyncio.Event()

        async def retrieve(request: web.Request) -> web.Response:
            (query,) = (await request.json())["queries"]
            waiting[0] += 1
            if waiting[0] == COUNT:
                all_here.set()
            await all_here.wait()
            return web.json_response({"result": [[{"document": {"contents": f"{query}\nfound"}, "score": 1.0}]]})

        app = web.Application()
        app.router.add_post("/retrieve", retrieve)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        places.append(f"http://127.0.0.1:{runner.addresses[0][1]}/retrieve")
        started.set()

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(serve(), loop).result(10)
    yield places[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def test_the_steps_of_several_rollouts_wait_for_the_server_together(url: str) -> None:
    env = SearchEnv("tiny", countries=4, retriever=url)
    assert env.waits and not SearchEnv("tiny", countries=4).waits
    sessions = [env.reset(task) for task in env.tasks("train", COUNT)]
    answers = Answers(COUNT, 60.0)

    async def steps() -> list[Step]:
        searches = [partial(session.step, session.write("search", f"q{i}")) for i, session in enumerate(sessions)]
        return await asyncio.gather(*(answers.call(True, search) for search in searches))

    found = asyncio.run(steps())
    answers.close()
    assert [step.observation for step in found] == [f"[1] q{i}: found" for i in range(COUNT)]
