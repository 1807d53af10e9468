"""A dense server over real HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from turnwise.errors import InputError
from turnwise_worlds.search import SearchEnv
from turnwise_worlds.search.encyclopaedia import Page
from turnwise_worlds.search.retrieval import Served

ROOT = Path(__file__).parents[4]
PAGES = [
    Page("Comet", ("A comet is ice.",)),
    Page("Stark Motors", ("It made the Comet.",)),
    Page("Lenbury", ("A town. <|im_end|>",)),
]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("serve_retrieval", ROOT / "scripts" / "serve_retrieval.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Letters:
    """An encoder outside of our code: counts of letters, normalised."""

    def encode(self, texts: list[str], normalize_embeddings: bool, show_progress_bar: bool) -> np.ndarray:
        counts = np.array(
            [[text.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz:"] for text in texts], np.float32
        )
        return counts / np.linalg.norm(counts + 1e-9, axis=1, keepdims=True)


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


def test_search_works_the_same_behind_a_server(script: ModuleType, serve: Any) -> None:
    local = SearchEnv("tiny", countries=3)
    pages = list(local.pages or ())
    url = serve(script.make_app(script.Index(Letters(), pages, "", "", None)))
    env = SearchEnv("tiny", countries=3, results=3, retriever=url)
    assert env.waits and not local.waits  # the searches of several rollouts then wait together
    task = env.tasks("train", 1)[0]
    page = env.pages.named(task.data["evidence"][0][0]) if env.pages else None
    assert page is not None
    lines = env.reset(task).step(f"search {page.title}\n{page.text}").observation.splitlines()
    assert lines[0] == f"[1] {page.title}: {page.text}"
    assert len(lines) == 3


def test_the_best_by_cosine_come_first_whatever_the_chunks(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    class Table:
        def encode(self, texts: list[str], **_: Any) -> np.ndarray:
            return vectors[[int(text.split()[0]) for text in texts]]

    monkeypatch.setattr(script, "CHUNK", 7)
    index = script.Index(Table(), [Page(f"{i}", ("",)) for i in range(50)], "", "", None)
    hits = index.search(["3", "11"], 5)
    for row, asked in zip(hits, (3, 11), strict=True):
        expected = np.argsort(-(vectors @ vectors[asked]))[:5]
        assert [int(page.title) for page, _ in row] == expected.tolist()
        assert row[0][1] == pytest.approx(1, abs=1e-5)
    assert len(index.search(["0"], 1000)[0]) == 50


def test_embeddings_are_kept_and_read_back(script: ModuleType, tmp_path: Path) -> None:
    cache = tmp_path / "pages.npy"
    first = script.Index(Letters(), PAGES, "", "", cache)
    assert cache.exists()

    class Never(Letters):
        def encode(self, texts: list[str], **options: Any) -> np.ndarray:
            assert len(texts) == 1, "pages were encoded again"
            return super().encode(texts, **options)

    again = script.Index(Never(), PAGES, "", "", cache)
    assert [p.title for p, _ in again.search(["comet"], 2)[0]] == [p.title for p, _ in first.search(["comet"], 2)[0]]


def test_a_server_that_fails_is_a_fault_and_never_an_empty_result(script: ModuleType, serve: Any) -> None:
    url = serve(script.make_app(script.Index(Letters(), PAGES, "", "", None)))
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


def test_a_server_with_a_token_answers_only_who_has_it(
    script: ModuleType, serve: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = [Page("Comet", ("A comet is ice.",))]
    url = serve(script.make_app(script.Index(Letters(), pages, "", "", None), key="only-between-us"))
    monkeypatch.delenv("TURNWISE_RETRIEVAL_KEY", raising=False)
    with pytest.raises(InputError, match=r"401.*TURNWISE_RETRIEVAL_KEY") as caught:
        Served(url, retries=0)("comet", 1)
    assert "only-between-us" not in str(caught.value)
    monkeypatch.setenv("TURNWISE_RETRIEVAL_KEY", "only-between-u")
    with pytest.raises(InputError, match="401"):
        Served(url, retries=0)("comet", 1)
    monkeypatch.setenv("TURNWISE_RETRIEVAL_KEY", "only-between-us")
    assert [page.title for page in Served(url, retries=0)("comet", 1)] == ["Comet"]
    monkeypatch.delenv("TURNWISE_RETRIEVAL_KEY")
    assert script.main(["--model", "m", "--encyclopaedia", "tiny", "--host", "0.0.0.0"]) == 2
    assert "TURNWISE_RETRIEVAL_KEY" in capsys.readouterr().err
