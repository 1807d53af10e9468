"""Searches for pages with BM25 or a retrieval server."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from turnwise.env import EnvironmentFault
from turnwise.errors import InputError
from turnwise.files import parse_json
from turnwise.http_client import Connection, Fault, Retries, check_url, key_from
from turnwise.text import plain_body
from turnwise_worlds import workers
from turnwise_worlds.search.encyclopaedia import Page, Pages

KEY = "TURNWISE_RETRIEVAL_KEY"  # environment variable with the server's token; if it is not set, no token is sent
MAX_BODY = 16 * 2**20  # maximum size of an answer in bytes
MAX_QUERY = 4096  # maximum number of characters of a query that are sent; encoders read fewer
_TITLE = 3  # weight of title words relative to other words, because a page is about its title
_KEPT = 16_384  # number of queries whose results are cached; the rollouts of a group ask similar queries


Retriever = Callable[[str, int], tuple[Page, ...]]
"""Finds the best pages for a query, at most the given number."""


class Bm25:
    """Lucene's BM25 over titles and sentences (bm25s, arXiv:2407.03618). Equal scores are ordered by page number."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        texts = [" ".join([page.title] * _TITLE + [page.text]) for page in pages]
        self._index = _bm25s().BM25()
        self._index.index(_bm25s().tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
        self._search = lru_cache(maxsize=_KEPT)(self._search_uncached)

    def __call__(self, query: str, k: int) -> tuple[Page, ...]:
        return self._search(query, k)

    def _search_uncached(self, query: str, k: int) -> tuple[Page, ...]:
        (words,) = _bm25s().tokenize([query], stopwords="en", show_progress=False, return_ids=False)
        known = [word for word in words if word in self._index.vocab_dict]
        scores = self._index.get_scores(known) if known else np.zeros(0)
        k = min(k, int((scores > 0).sum()))
        if k == 0:
            return ()
        floor = np.partition(scores, -k)[-k]
        (best,) = np.nonzero(scores >= floor)
        order = best[np.lexsort((best, -scores[best]))][:k]
        return tuple(self.pages.pages[i] for i in order)


class Served:
    r"""Finds pages with a retrieval server that has the ``/retrieve`` protocol of Search-R1.

    A POST request with ``{"queries": [...], "topk": k, "return_scores": true}`` gets the answer ``{"result":
    [[{"document": {"contents": "title\ntext"}, "score": s}, ...]]}``.

    A search that fails raises ``EnvironmentFault`` or, as long as no search of the run has succeeded, an ``InputError``,
    which ends the run. ``timeout`` is the limit of one attempt in seconds, and ``pause`` the seconds before the second
    attempt, doubled before each further one.
    """

    def __init__(self, url: str, timeout: float = 30.0, retries: int = 2, pause: float = 0.25) -> None:
        try:
            check_url(url, KEY)
        except ValueError as error:
            raise ValueError(f"retriever: {error}; write the address as http://127.0.0.1:8000/retrieve") from None
        self._url, self._timeout = url, timeout
        self._retries = Retries(retries + 1, pause, limit=timeout * (retries + 1))
        self._worked = False
        self._search = lru_cache(maxsize=_KEPT)(self._search_uncached)

    def __call__(self, query: str, k: int) -> tuple[Page, ...]:
        return self._search(query[:MAX_QUERY].encode(errors="replace").decode(), k)

    def _search_uncached(self, query: str, k: int) -> tuple[Page, ...]:
        body = {"queries": [query], "topk": k, "return_scores": True}
        try:
            pages = pages_of(workers.start(self._ask(body)).result(), k)
        except (Fault, ValueError) as error:
            why = error.whole if isinstance(error, Fault) else f"the answer is not in the /retrieve format ({error})"
            if self._worked:
                raise EnvironmentFault(f"{self._url}: {why}") from error
            raise InputError(
                f"retriever: no search of this run has succeeded yet. {self._url}: {why}. Start the server, "
                "or correct env.retriever"
            ) from error
        self._worked = True
        return pages

    async def _ask(self, body: dict[str, Any]) -> bytes:
        connection = Connection(self._url, KEY, most=MAX_BODY)
        try:
            return await self._retries.send(lambda: connection.ask("", self._timeout, body), lambda fault: None)
        finally:
            await connection.close()


def pages_of(answer: bytes, k: int) -> tuple[Page, ...]:
    try:
        response = parse_json(answer)
        (hits,) = response["result"]  # one list, because one query was sent
        if response.get("error") or not isinstance(hits, list):
            raise ValueError("the answer contains an error, or no list of pages")
        texts = [hit.get("document", hit)["contents"] for hit in hits]
        if not all(contents.strip() for contents in texts):
            raise ValueError("a page has neither a title nor a text")
        pages = [contents.partition("\n") for contents in texts[:k]]
        # Pages breaks up the markers of chats and calls, so each page passes through it before the policy sees it.
        return tuple(next(iter(Pages([Page(title.strip().strip('"'), (text,))]))) for title, _, text in pages)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(plain_body(repr(error), key_from(KEY))) from error


@cache
def _bm25s() -> Any:
    """Imports bm25s, only when pages are searched, because bm25s loads the compiler numba, which takes time."""
    # bm25s starts JAX where it is installed, and JAX would take three quarters of a GPU's memory. Nothing here uses
    # JAX.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # bm25s logs every index that it builds
    return bm25s
