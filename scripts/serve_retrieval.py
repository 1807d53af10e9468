"""Serves dense retrieval over HTTP with any sentence-transformers model, for env=search and env=browse.

python scripts/serve_retrieval.py --model intfloat/e5-base-v2 --corpus wikipedia.jsonl --query "query: " --passage "passage: "
python scripts/serve_retrieval.py --model sentence-transformers/all-MiniLM-L6-v2 --encyclopaedia full
python train.py method=grpo env=search env.retriever=http://127.0.0.1:8000/retrieve

The server answers POST /retrieve with {"queries": [...], "topk": k, "return_scores": true}, as Search-R1's server does. It
needs the package sentence-transformers. If the environment variable TURNWISE_RETRIEVAL_KEY is set to a token, every request
must contain the token; set the variable on this machine and where runs are started. A token is required if other machines
can reach the address. Embeddings are saved beside the corpus, so that a second start is quick.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import hmac
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from turnwise.endpoints import is_local, key_from
from turnwise.errors import InputError
from turnwise.files import atomic_write, parse_json
from turnwise.programs import options, program
from turnwise_worlds.search.encyclopaedia import Encyclopaedia, Page
from turnwise_worlds.search.retrieval import KEY, MAX_QUERY, read_pages

CHUNK = 1 << 20  # number of pages that are scored at once
MOST_HITS = 2048  # pages that all queries of a request may get together
BODY = 4 << 20  # maximum size of a request in bytes


class Index:
    """Pages and their normalised embeddings. The pages with the highest cosine similarity are found by exact search.

    Args:
        encoder: ``encode`` of a sentence-transformers model.
        query, passage: the prefixes that the model expects before a query and before a page.
        cache: file of embeddings. It is read if it exists, and written otherwise.
    """

    def __init__(self, encoder: Any, pages: list[Page], query: str, passage: str, cache: Path | None) -> None:
        self.encoder, self.pages, self.query = encoder, pages, query
        if cache is not None and cache.exists():
            vectors = np.load(cache)
        else:
            vectors = self._encode([f"{passage}{page.title}\n{page.text}" for page in pages], progress=True)
            if cache is not None:
                with atomic_write(cache) as part, part.open("wb") as file:
                    np.save(file, vectors.astype(np.float16))
        import torch  # only here and in search, because it delays the help and refusals

        cuda = torch.cuda.is_available()
        place = ("cuda", torch.float16) if cuda else ("cpu", torch.float32)
        self.vectors = torch.from_numpy(vectors).to(*place)

    def _encode(self, texts: list[str], progress: bool = False) -> np.ndarray:
        found: np.ndarray = self.encoder.encode(texts, normalize_embeddings=True, show_progress_bar=progress)
        return found

    def search(self, queries: list[str], k: int) -> list[list[tuple[Page, float]]]:
        """Returns the ``k`` best pages for each query with their scores, the best page first."""
        import torch

        asked = torch.from_numpy(self._encode([self.query + query for query in queries])).to(self.vectors)
        k = min(k, len(self.pages))
        parts = []
        for start in range(0, len(self.pages), CHUNK):
            scores = asked @ self.vectors[start : start + CHUNK].T
            best = scores.topk(min(k, scores.shape[1]))
            parts.append((best.values, best.indices + start))
        values, indices = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
        order = values.topk(k)
        best_pages = indices.gather(1, order.indices)
        return [
            [(self.pages[i], score) for i, score in zip(row, scores, strict=True)]
            for row, scores in zip(best_pages.tolist(), order.values.tolist(), strict=True)
        ]


def make_app(index: Index, key: str | None = None) -> web.Application:
    """Makes the web application that answers search requests from an index, one search at a time.

    A request in a wrong format gets status 400 and the reason. If ``key`` is given, a request without it gets 401.
    """
    thread = ThreadPoolExecutor(1, "search")  # so that the event loop can answer while a search runs

    async def retrieve(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if key is not None and not hmac.compare_digest(given, f"Bearer {key}".encode()):
            return web.json_response({"error": f"the request needs the server's token: set {KEY}"}, status=401)
        try:
            queries, k, scores = read_request(await request.read())
        except ValueError as error:
            return web.json_response({"error": str(error)[:300]}, status=400)
        hits = await asyncio.get_running_loop().run_in_executor(thread, index.search, queries, k)
        return web.json_response({"result": [[shown(*hit, scores) for hit in row] for row in hits]})

    app = web.Application(client_max_size=BODY)
    app.router.add_post("/retrieve", retrieve)
    return app


def read_request(text: bytes) -> tuple[list[str], int, bool]:
    """Reads the queries of a request, the number of pages for each, and whether scores are wanted."""
    body = parse_json(text)
    queries, k = (body.get("queries"), body.get("topk", 3)) if isinstance(body, dict) else (None, 0)
    if not isinstance(queries, list) or not queries or not all(isinstance(query, str) for query in queries):
        raise ValueError("queries must be a list of one or more texts")
    if not isinstance(k, int) or k < 1 or len(queries) * k > MOST_HITS:
        raise ValueError(f"topk must be at least 1, and all queries of a request together can get {MOST_HITS} pages")
    return [query[:MAX_QUERY] for query in queries], k, body.get("return_scores") is True


def shown(page: Page, score: float, scores: bool) -> dict[str, Any]:
    document = {"contents": f"{page.title}\n{page.text}"}
    return {"document": document, "score": score} if scores else document


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("--model", required=True, help="a sentence-transformers model: its name on the hub, or a folder")
    pages = parser.add_mutually_exclusive_group(required=True)
    pages.add_argument("--corpus", help="file of pages: JSON lines, Parquet or TSV with title and text")
    pages.add_argument(
        "--encyclopaedia", choices=("tiny", "full"), help="the generated pages of env=search at this level"
    )
    add("--edition", type=int, default=0, help="edition of the encyclopaedia, like env.edition")
    add("--query", default="", help='prefix that the model expects before a query, such as "query: "')
    add("--passage", default="", help='prefix that the model expects before a page, such as "passage: "')
    add("--host", default="127.0.0.1", help=f"address; if other machines can reach it, {KEY} is required (%(default)s)")
    add("--port", type=int, default=8000)
    return parser


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status 2 if an argument or file cannot be used, or a package is not installed."""
    args = parser().parse_args(arguments)
    key = key_from(KEY)
    if key is None and not is_local(f"http://{args.host}"):
        raise InputError(f"--host {args.host}: other machines can reach this address; set {KEY} here and for the runs")
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise InputError(f"the server needs a further package ({error}): pip install sentence-transformers") from error
    cache = None
    if args.corpus is not None:
        pages = read_pages(args.corpus, "--corpus")
        size = Path(args.corpus).stat()
        known = f"{args.model} {args.passage} {size.st_size} {size.st_mtime_ns}"
        cache = Path(f"{args.corpus}.{hashlib.sha256(known.encode()).hexdigest()[:12]}.npy")
    else:
        pages = list(Encyclopaedia(args.encyclopaedia, args.edition).pages)
    index = Index(SentenceTransformer(args.model), pages, args.query, args.passage, cache)
    print(f"serving http://{args.host}:{args.port}/retrieve (press Ctrl-C to stop the server)", flush=True)
    web.run_app(make_app(index, key), host=args.host, port=args.port, print=None, access_log=None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
