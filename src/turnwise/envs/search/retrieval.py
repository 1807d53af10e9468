"""Finding pages by a query: BM25 in this process, or any retrieval server over HTTP."""

from __future__ import annotations

import http.client
import json
import logging
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import urlsplit

import bm25s
import numpy as np

from turnwise.endpoints import check_url, key_from
from turnwise.envs.base import EnvironmentFault
from turnwise.envs.search.pages import Page, Pages

_TITLE = 3  # how often a title counts: a page is about its title, and only mentions what it links to
KEY = "TURNWISE_RETRIEVAL_KEY"  # environment variable that holds the server's token; unset, none is sent
MAX_BODY = 16 * 2**20  # bytes of an answer
_KEPT = 16_384  # queries remembered: the rollouts of a group ask much the same
logging.getLogger("bm25s").setLevel(logging.WARNING)  # it tells of every index that it builds


class Retriever(Protocol):
    """Query -> the best pages, best first, none where nothing fits."""

    def __call__(self, query: str, k: int) -> tuple[Page, ...]:
        """Raises ``EnvironmentFault`` where the search itself fails."""
        ...


class Bm25:
    """Lucene's BM25 over titles and sentences (bm25s, arXiv:2407.03618). Equal scores are ordered by page number."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        texts = [" ".join([page.title] * _TITLE + [page.text]) for page in pages]
        self._index = bm25s.BM25()
        self._index.index(_tokens(texts), show_progress=False)
        self._search = lru_cache(maxsize=_KEPT)(self._search_uncached)

    def __call__(self, query: str, k: int) -> tuple[Page, ...]:
        return self._search(query, k)

    def _search_uncached(self, query: str, k: int) -> tuple[Page, ...]:
        known = [word for word in _words(query) if word in self._index.vocab_dict]
        if not known:
            return ()
        scores = self._index.get_scores(known)
        k = min(k, int((scores > 0).sum()))
        if k == 0:
            return ()
        floor = np.partition(scores, -k)[-k]
        (best,) = np.nonzero(scores >= floor)
        order = best[np.lexsort((best, -scores[best]))][:k]
        return tuple(self.pages.pages[i] for i in order)


class Served:
    r"""A retrieval server that speaks the ``/retrieve`` protocol of Search-R1: ``scripts/serve_retrieval.py`` is one.

    POST ``{"queries": [...], "topk": k, "return_scores": true}`` answers ``{"result": [[{"document": {"contents":
    "title\ntext"}, "score": s}, ...]]}``.

    Args:
        url: of the server's ``/retrieve``.
        timeout: seconds.
        retries: further attempts when no answer came.

    Raises:
        ValueError: the url is not an http one, or holds a secret.
    """

    def __init__(self, url: str, timeout: float = 30.0, retries: int = 2) -> None:
        try:
            check_url(url, KEY)
        except ValueError as error:
            raise ValueError(f"retriever: {error}; write it as http://127.0.0.1:8000/retrieve") from None
        self._url, self._parts, self._timeout, self._retries = url, urlsplit(url), timeout, retries
        self._search = lru_cache(maxsize=_KEPT)(self._search_uncached)

    def __call__(self, query: str, k: int) -> tuple[Page, ...]:
        return self._search(query, k)

    def _search_uncached(self, query: str, k: int) -> tuple[Page, ...]:
        answer = self._post({"queries": [query], "topk": k, "return_scores": True})
        try:
            return pages_of(answer, k)
        except ValueError as error:
            raise EnvironmentFault(f"{self._url}: the answer is not in the /retrieve format ({error})") from error

    def _post(self, body: Mapping[str, Any]) -> bytes:
        connect = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        headers = {"Content-Type": "application/json"}
        if key := key_from(KEY):
            headers["Authorization"] = f"Bearer {key}"
        reason: Exception | str = ""
        for _ in range(self._retries + 1):
            connection = connect(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
            try:
                connection.request("POST", self._parts.path or "/", json.dumps(body), headers)
                reply = connection.getresponse()
                text = _bounded(reply, time.monotonic() + self._timeout)
                if reply.status == 200:
                    return text
                reason = f"HTTP {reply.status}: {text[:200].decode(errors='replace')}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = error
            finally:
                connection.close()
        raise EnvironmentFault(f"{self._url}: no answer after {self._retries + 1} attempts ({reason})")


def pages_of(answer: bytes, k: int) -> tuple[Page, ...]:
    """The first ``k`` pages of a server's answer.

    Raises:
        ValueError: it is not in the format.
    """
    try:
        found = [hit.get("document", hit)["contents"] for hit in json.loads(answer)["result"][0]]
        pages = [contents.partition("\n") for contents in found[:k]]
        # as Pages does, a page is freed of marks before anybody sees it
        return tuple(next(iter(Pages([Page(title.strip().strip('"'), (text,))]))) for title, _, text in pages)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(repr(error)) from error


def _bounded(reply: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body of an answer that trickles or never ends is no answer."""
    body = bytearray()
    while piece := reply.read1(1 << 16):
        body += piece
        if len(body) > MAX_BODY:
            raise ValueError(f"an answer above {MAX_BODY} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer is not whole in time")
    return bytes(body)


def _tokens(texts: list[str]) -> Any:
    return bm25s.tokenize(texts, stopwords="en", show_progress=False)


def _words(query: str) -> list[str]:
    """The query's words as the index knows them."""
    found = bm25s.tokenize([query], stopwords="en", show_progress=False, return_ids=False)
    return list(found[0])
