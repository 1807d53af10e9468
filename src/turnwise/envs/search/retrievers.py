"""Finds the pages that fit a query, with BM25 in this process or with a retrieval server over HTTP."""

from __future__ import annotations

import logging
import os
from functools import cache, lru_cache
from typing import Any, Protocol

import numpy as np

from turnwise.endpoints import Connection, Fault, Retries, check_url, key_from
from turnwise.envs import event_loop
from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.search.pages_and_questions import Page, Pages
from turnwise.errors import InputError
from turnwise.json_and_yaml import parse_json
from turnwise.text import said

logger = logging.getLogger(__name__)

_TITLE = 3  # weight of title words relative to other words, because a page is about its title
KEY = "TURNWISE_RETRIEVAL_KEY"  # environment variable with the server's token; if it is not set, no token is sent
MAX_BODY = 16 * 2**20  # maximum size of an answer in bytes
MAX_QUERY = 4096  # maximum number of characters of a query that are sent; encoders read fewer
_OURS = "city"  # the test query, with which this module finds out whether the server works
_LOGGED = 8  # maximum number of different faults that are logged
_KEPT = 16_384  # number of queries whose results are cached; the rollouts of a group ask similar queries


class Retriever(Protocol):
    """A function that finds the pages that fit a query best."""

    def __call__(self, query: str, k: int) -> tuple[Page, ...]:
        """Returns at most ``k`` pages, the best page first. Raises ``EnvironmentFault`` if the search itself fails."""
        ...


class Bm25:
    """Finds pages with Lucene's BM25 over their titles and sentences (package bm25s, arXiv:2407.03618).

    Pages with equal scores are ordered by page number.
    """

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        texts = [" ".join([page.title] * _TITLE + [page.text]) for page in pages]
        self._index = _bm25s().BM25()
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
    r"""Finds pages with a retrieval server that has the ``/retrieve`` protocol of Search-R1.
    ``scripts/serve_retrieval.py`` is such a server.

    A POST request with ``{"queries": [...], "topk": k, "return_scores": true}`` gets the answer ``{"result":
    [[{"document": {"contents": "title\ntext"}, "score": s}, ...]]}``.

    A search that fails raises ``EnvironmentFault``. At most 8 different faults are logged. As long as no search has
    worked, a test query is sent after each failed search. If the test query fails too, an ``InputError`` ends the run.

    Args:
        url: address of the server, up to and including ``/retrieve``.
        timeout: time limit in seconds of one attempt, from the connection to the last byte of the answer.
        retries: number of further attempts after an attempt that got no answer.
        pause: seconds before the second attempt. The pause doubles before each further attempt.

    Raises:
        ValueError: the url does not begin with http, or contains a secret.
    """

    def __init__(self, url: str, timeout: float = 30.0, retries: int = 2, pause: float = 0.25) -> None:
        try:
            check_url(url, KEY)
        except ValueError as error:
            raise ValueError(f"retriever: {error}; write the address as http://127.0.0.1:8000/retrieve") from None
        self._url, self._timeout = url, timeout
        self._retries = Retries(retries + 1, pause, limit=timeout * (retries + 1))
        self._worked = False
        self._logged: set[str] = set()
        self._search = lru_cache(maxsize=_KEPT)(self._search_uncached)

    def __call__(self, query: str, k: int) -> tuple[Page, ...]:
        """Returns at most ``k`` pages, the best page first.

        Raises:
            EnvironmentFault: the search failed.
            InputError: the search and the test query failed, and no search has worked before.
        """
        return self._search(query[:MAX_QUERY].encode(errors="replace").decode(), k)

    def _search_uncached(self, query: str, k: int) -> tuple[Page, ...]:
        try:
            found = self._found(query, k)
        except EnvironmentFault as fault:
            self._try_out(k)
            self._log(str(fault))
            raise
        self._worked = True
        return found

    def _try_out(self, k: int) -> None:
        if self._worked:
            return
        try:
            self._found(_OURS, k)
        except EnvironmentFault as fault:
            raise InputError(
                f"retriever: no search of this run has succeeded yet. {fault}. Start the server "
                "(scripts/serve_retrieval.py), or correct "
                "env.retriever"
            ) from fault
        self._worked = True

    def _found(self, query: str, k: int) -> tuple[Page, ...]:
        body = {"queries": [query], "topk": k, "return_scores": True}
        try:
            return pages_of(event_loop.start(self._ask(body)).result(), k)
        except Fault as fault:
            raise EnvironmentFault(f"{self._url}: {fault.whole}") from fault
        except ValueError as error:
            raise EnvironmentFault(f"{self._url}: the answer is not in the /retrieve format ({error})") from error

    async def _ask(self, body: dict[str, Any]) -> bytes:
        connection = Connection(self._url, KEY, most=MAX_BODY)
        try:
            return await self._retries.send(lambda: connection.ask("", self._timeout, body), lambda fault: None)
        finally:
            await connection.close()

    def _log(self, fault: str) -> None:
        if fault not in self._logged and len(self._logged) < _LOGGED:
            self._logged.add(fault)
            logger.warning("a search failed: %s; the rollout that needed this search is started again", fault)


def pages_of(answer: bytes, k: int) -> tuple[Page, ...]:
    """Returns the first ``k`` pages in the answer of a retrieval server.

    Raises:
        ValueError: the answer is not in the ``/retrieve`` format.
    """
    try:
        given = parse_json(answer)
        (hits,) = given["result"]  # one list, because one query was sent
        if given.get("error") or not isinstance(hits, list):
            raise ValueError("the answer contains an error, or no list of pages")
        found = [hit.get("document", hit)["contents"] for hit in hits]
        if not all(contents.strip() for contents in found):
            raise ValueError("a page has neither a title nor a text")
        pages = [contents.partition("\n") for contents in found[:k]]
        # Pages breaks up the markers of chats and calls, so each page passes through it before the policy sees it.
        return tuple(next(iter(Pages([Page(title.strip().strip('"'), (text,))]))) for title, _, text in pages)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(said(repr(error), key_from(KEY))) from error


@cache
def _bm25s() -> Any:
    """Imports bm25s, only when pages are searched, because bm25s loads the compiler numba, which takes time."""
    # bm25s starts JAX where it is installed, and JAX would take three quarters of a GPU's memory. Nothing here uses
    # JAX.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # bm25s logs every index that it builds
    return bm25s


def _tokens(texts: list[str]) -> Any:
    return _bm25s().tokenize(texts, stopwords="en", show_progress=False)


def _words(query: str) -> list[str]:
    """Returns the words of a query as the BM25 index stores them."""
    found = _bm25s().tokenize([query], stopwords="en", show_progress=False, return_ids=False)
    return list(found[0])
