"""A dense retrieval server for env=search and env=browse: any sentence-transformers model, over HTTP.

python scripts/serve_retrieval.py --model intfloat/e5-base-v2 --corpus wikipedia.jsonl --query "query: " --passage "passage: "
python scripts/serve_retrieval.py --model sentence-transformers/all-MiniLM-L6-v2 --encyclopaedia full
python train.py method=grpo env=search env.retriever=http://127.0.0.1:8000/retrieve

POST /retrieve with {"queries": [...], "topk": k, "return_scores": true}, as Search-R1's server answers it. Needs the extra:
pip install -r requirements-dense.txt. Where TURNWISE_RETRIEVAL_KEY holds a token, here and where runs start, every request must
carry it; an address that others can reach needs one. Embeddings are kept beside the corpus, so a second start is quick.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web

from turnwise.endpoints import is_local, key_from
from turnwise.envs.search.encyclopaedia import Encyclopaedia
from turnwise.envs.search.pages import Page
from turnwise.envs.search.public import read_pages
from turnwise.envs.search.retrieval import KEY
from turnwise.errors import InputError

MOST = 1000  # pages of one answer
CHUNK = 1 << 20  # pages scored at once


class Index:
    """Pages and their normalised embeddings; the best by cosine similarity are found exactly.

    Args:
        encoder: ``encode`` of a sentence-transformers model.
        pages: to search.
        query, passage: what the model wants in front of a query and of a page; E5 wants "query: " and "passage: ".
        cache: file of embeddings, read if it is there and written if not.
    """

    def __init__(self, encoder: Any, pages: list[Page], query: str, passage: str, cache: Path | None) -> None:
        self.encoder, self.pages, self.query = encoder, pages, query
        if cache is not None and cache.exists():
            vectors = np.load(cache)
        else:
            texts = [f"{passage}{page.title}\n{page.text}" for page in pages]
            vectors = self._encode(texts, progress=True)
            if cache is not None:
                partial = cache.with_suffix(".partial.npy")
                np.save(partial, vectors.astype(np.float16))
                partial.replace(cache)
        on_gpu = torch.cuda.is_available()
        self.vectors = torch.from_numpy(vectors).to(
            "cuda" if on_gpu else "cpu", torch.float16 if on_gpu else torch.float32
        )

    def _encode(self, texts: list[str], progress: bool = False) -> np.ndarray:
        found: np.ndarray = self.encoder.encode(texts, normalize_embeddings=True, show_progress_bar=progress)
        return found

    def search(self, queries: list[str], k: int) -> list[list[tuple[Page, float]]]:
        """The ``k`` best pages of each query with their scores, best first."""
        asked = torch.from_numpy(self._encode([self.query + query for query in queries])).to(self.vectors)
        k = min(k, len(self.pages))
        parts = []
        for start in range(0, len(self.pages), CHUNK):
            scores = asked @ self.vectors[start : start + CHUNK].T
            best = scores.topk(min(k, scores.shape[1]))
            parts.append((best.values, best.indices + start))
        values, indices = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
        order = values.topk(k)
        chosen = indices.gather(1, order.indices)
        return [
            [(self.pages[i], score) for i, score in zip(row, scores, strict=True)]
            for row, scores in zip(chosen.tolist(), order.values.tolist(), strict=True)
        ]


def make_app(index: Index, key: str | None = None) -> web.Application:
    """The server over an index. What is no request in the format is answered with 400 and the reason.

    Args:
        key: token that every request must carry (``Authorization: Bearer``), or it is answered with 401; None: none.
    """
    wanted = f"Bearer {key}".encode()

    async def retrieve(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if key is not None and not hmac.compare_digest(given, wanted):
            return web.json_response({"error": f"a token is needed: set {KEY}"}, status=401)
        try:
            body = await request.json()
            queries, k = body["queries"], body.get("topk", 3)
            if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries) or not queries:
                raise ValueError("queries must be a list of texts")
            if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MOST:
                raise ValueError(f"topk must be a whole number from 1 to {MOST}, got {k!r}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)
        found = [
            [{"document": {"contents": f"{page.title}\n{page.text}"}, "score": score} for page, score in hits]
            for hits in index.search(queries, k)
        ]
        if not body.get("return_scores", False):
            return web.json_response({"result": [[hit["document"] for hit in hits] for hits in found]})
        return web.json_response({"result": found})

    app = web.Application(client_max_size=16 << 20)
    app.router.add_post("/retrieve", retrieve)
    return app


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="a sentence-transformers model: its name on the hub, or a folder")
    pages = parser.add_mutually_exclusive_group(required=True)
    pages.add_argument("--corpus", help="file of pages: JSON lines, Parquet or TSV with title and text")
    pages.add_argument(
        "--encyclopaedia", choices=("tiny", "full"), help="the generated pages of env=search at this level"
    )
    add("--edition", type=int, default=0, help="of the encyclopaedia, as env.edition")
    add("--query", default="", help='what the model wants before a query, such as "query: "')
    add("--passage", default="", help='what the model wants before a page, such as "passage: "')
    add("--host", default="127.0.0.1", help=f"another one than this machine's own needs {KEY} (default 127.0.0.1)")
    add("--port", type=int, default=8000)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 2 when an argument or file cannot be used, or the extra is not installed."""
    args = parser().parse_args(arguments)
    key = key_from(KEY)
    try:
        if key is None and not is_local(f"http://{args.host}"):
            raise InputError(
                f"--host {args.host}: others can reach that, so a token is needed. Set {KEY} here and where runs start"
            )
        print("reading pages", flush=True)
        cache = None
        if args.corpus is not None:
            pages = read_pages(args.corpus, "--corpus")
            size = Path(args.corpus).stat()
            known = f"{args.model} {args.passage} {size.st_size} {size.st_mtime_ns}"
            cache = Path(f"{args.corpus}.{hashlib.sha256(known.encode()).hexdigest()[:12]}.npy")
        else:
            pages = list(Encyclopaedia(args.encyclopaedia, args.edition).pages)
        index = Index(_model(args.model), pages, args.query, args.passage, cache)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    web.run_app(make_app(index, key), host=args.host, port=args.port)
    return 0


def _model(name: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise InputError(f"the dense retriever is an extra ({error}): pip install -r requirements-dense.txt") from error
    try:
        return SentenceTransformer(name)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"--model {name}: cannot be loaded ({first}); name a folder or a model of the hub") from error


if __name__ == "__main__":
    sys.exit(main())
