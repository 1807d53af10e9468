"""A dense server over real HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.search import SearchEnv
from turnwise.envs.search.pages_and_questions import Page
from turnwise.envs.search.retrievers import MAX_QUERY, Served
from turnwise.errors import InputError

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
    pages = list(local._pages or ())
    url = serve(script.make_app(script.Index(Letters(), pages, "", "", None)))
    env = SearchEnv("tiny", countries=3, results=3, retriever=url)
    task = env.tasks("train", 1)[0]
    page = env._pages.named(task.data["evidence"][0][0]) if env._pages else None
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


@pytest.mark.extra("dense")
def test_any_sentence_transformers_model_serves(script: ModuleType, serve: Any, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, BertTokenizerFast

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"abcdefghijklmnopqrstuvwxyz",
        *[f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"],
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(words), **shape)).save_pretrained(tmp_path / "bert")
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    body = models.Transformer(str(tmp_path / "bert"))
    SentenceTransformer(modules=[body, models.Pooling(32)]).save(str(tmp_path / "model"))
    index = script.Index(script._model(str(tmp_path / "model")), PAGES, "", "", tmp_path / "pages.npy")
    found = Served(serve(script.make_app(index)))("Comet\nA comet is ice.", 3)
    assert {page.title for page in found} == {"Comet", "Stark Motors", "Lenbury"}
    assert found[0].title == "Comet"  # a text is nearest to itself, whatever the weights


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


@pytest.mark.parametrize("token", [None, "only-between-us"])
def test_the_command_asks_for_the_token_that_is_set_and_for_no_other(
    token: str | None, script: ModuleType, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "pages.jsonl"
    corpus.write_text(json.dumps({"title": "Comet", "text": "A comet is ice."}))
    apps: list[web.Application] = []
    monkeypatch.setattr(script, "_model", lambda name: Letters())

    async def run(app: web.Application, host: str, port: int) -> None:
        apps.append(app)

    monkeypatch.setattr(script, "run", run)
    monkeypatch.delenv("TURNWISE_RETRIEVAL_KEY", raising=False)
    if token:
        monkeypatch.setenv("TURNWISE_RETRIEVAL_KEY", token)
    assert script.main(["--model", "m", "--corpus", str(corpus)]) == 0
    url = serve(apps[0])
    assert [page.title for page in Served(url, retries=0)("comet", 1)] == ["Comet"]
    monkeypatch.setenv("TURNWISE_RETRIEVAL_KEY", "another")
    if token:
        with pytest.raises(InputError, match="401"):
            Served(url, retries=0)("comet", 1)


def test_an_address_with_a_secret_is_refused_without_repeating_it() -> None:
    with pytest.raises(ValueError, match="retriever: url must not contain a user") as caught:
        Served("http://me:secret@127.0.0.1/retrieve")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("piece", "pause", "why"), [(b"x" * 2**20, 0.0, "larger than"), (b"x", 0.1, "timeout")])
def test_an_answer_without_end_is_given_up(piece: bytes, pause: float, why: str) -> None:
    class Endless(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(piece)
                    time.sleep(pause)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        search = Served(f"http://127.0.0.1:{server.server_port}/retrieve", timeout=1.0, retries=0)
        with pytest.raises(InputError, match=why):
            search("a query", 3)
    finally:
        server.shutdown()
        server.server_close()


def test_a_server_that_has_worked_and_one_query_that_it_refuses_are_faults_that_are_named(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that a policy writes may end the run, and no search that fails goes unsaid."""
    asked: list[str] = []

    async def moody(request: web.Request) -> web.Response:
        (query,) = (await request.json())["queries"]
        asked.append(query)
        if "bad" in query:
            return web.json_response({"error": "I refuse"}, status=400)
        return web.json_response({"result": [[{"document": {"contents": "Comet\nIce."}}]]})

    app = web.Application()
    app.router.add_post("/retrieve", moody)
    url = serve(app)
    find = Served(url, retries=1, pause=0.0)
    for n in range(3):
        with pytest.raises(EnvironmentFault, match="I refuse"):
            find(f"bad {n}", 1)
    assert [record.getMessage().count(url) for record in caplog.records if "I refuse" in record.getMessage()] == [1]
    assert len(asked) == 3 + 1  # ours once, for it worked; a refusal is not asked again
    assert find("\ud800" + "x" * 10_000, 1)[0].title == "Comet" and asked[-1] == "?" + "x" * (MAX_QUERY - 1)


def test_a_port_that_cannot_be_had_and_damaged_embeddings_are_said(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "pages.jsonl"
    corpus.write_text(json.dumps({"title": "Comet", "text": "A comet is ice."}))
    monkeypatch.setattr(script, "_model", lambda name: Letters())
    monkeypatch.delenv("TURNWISE_RETRIEVAL_KEY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in ("99999", str(taken.getsockname()[1])):
            assert script.main(["--model", "m", "--corpus", str(corpus), "--port", port]) == 2
            assert port in capsys.readouterr().err
    (cache,) = tmp_path.glob("*.npy")
    cache.write_bytes(cache.read_bytes()[:-20])
    index = script.Index(Letters(), [Page("Comet", ("A comet is ice.",))], "", "", cache)
    assert [page.title for page, _ in index.search(["comet"], 1)[0]] == ["Comet"]
    assert cache.name in capsys.readouterr().err
