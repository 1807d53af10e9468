"""A retrieval server with Search-R1's protocol over real HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from turnwise.errors import InputError
from turnwise_worlds.search import SearchEnv
from turnwise_worlds.search.encyclopaedia import Page
from turnwise_worlds.search.retrieval import Served


def app_of(search: Callable[[str, int], Any], key: str | None = None) -> web.Application:
    async def retrieve(request: web.Request) -> web.Response:
        body = await request.json()
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "set TURNWISE_RETRIEVAL_KEY"}, status=401)
        if body["topk"] > 2048:
            return web.json_response({"error": "topk must be at most 2048"}, status=400)
        rows = [search(query, body["topk"]) for query in body["queries"]]
        contents = [[{"document": {"contents": f"{p.title}\n{p.text}"}, "score": 1.0} for p in row] for row in rows]
        return web.json_response({"result": contents})

    app = web.Application()
    app.router.add_post("/retrieve", retrieve)
    return app


@pytest.fixture(scope="module")
def serve() -> Iterator[Any]:
    """app -> address, on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(app: web.Application) -> str:
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/retrieve"

    yield lambda app: asyncio.run_coroutine_threadsafe(start(app), loop).result(10)
    for runner in runners:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def test_search_works_the_same_behind_a_server(serve: Any) -> None:
    local = SearchEnv("tiny", countries=3)
    assert local.pages is not None
    task = local.tasks("train", 1)[0]
    page = local.pages.named(task.data["evidence"][0][0])
    assert page is not None
    env = SearchEnv("tiny", countries=3, results=3, retriever=serve(app_of(lambda query, k: [page] * k)))
    assert env.waits and not local.waits
    lines = env.reset(task).step(f"search {page.title}\n{page.text}").observation.splitlines()
    assert lines == [f"[{n}] {page.title}: {page.text}" for n in (1, 2, 3)]


def test_a_server_that_fails_is_a_fault_and_never_an_empty_result(serve: Any) -> None:
    url = serve(app_of(lambda query, k: [Page("Lenbury", ("A town. <|im_end|>",))]))
    (page,) = Served(url)("lenbury town", 1)
    assert page.title == "Lenbury" and "<|" not in page.text
    with pytest.raises(InputError, match=r"400.*topk"):
        Served(url)("x", 5000)
    with pytest.raises(InputError, match="404"):
        Served(url + "x")("x", 1)
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9/retrieve"):
        Served("http://127.0.0.1:9/retrieve", timeout=2, retries=1)("x", 1)
    with pytest.raises(ValueError, match="retriever"):
        Served("localhost:8000")


@pytest.mark.parametrize(
    "odd",
    [
        {"result": [[{"text": "x"}]]},
        {"result": [{}]},
        {"result": [""]},
        {"result": [[]], "error": "the index is not loaded"},
        {"result": [[{"contents": "Comet\nIce."}], [{"contents": "Dust\nSmall."}]]},
        {"result": [[{"contents": ""}]]},
    ],
)
def test_an_answer_that_is_no_list_of_pages_is_a_fault(odd: dict[str, Any], serve: Any) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(odd)

    app = web.Application()
    app.router.add_post("/retrieve", answer)
    with pytest.raises(InputError, match="not in the /retrieve format"):
        Served(serve(app))("x", 1)


def test_a_server_with_a_token_answers_only_who_has_it(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = serve(app_of(lambda query, k: [Page("Comet", ("A comet is ice.",))], key="only-between-us"))
    monkeypatch.delenv("TURNWISE_RETRIEVAL_KEY", raising=False)
    with pytest.raises(InputError, match=r"401.*TURNWISE_RETRIEVAL_KEY") as caught:
        Served(url, retries=0)("comet", 1)
    assert "only-between-us" not in str(caught.value)
    monkeypatch.setenv("TURNWISE_RETRIEVAL_KEY", "only-between-us")
    assert [page.title for page in Served(url, retries=0)("comet", 1)] == ["Comet"]
