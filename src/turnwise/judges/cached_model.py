"""The base class of all users of a chat endpoint that cache the model's answers: a judge, or tau2's simulated user."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnwise.endpoints import Background
from turnwise.judges.cache import Cache, CacheError
from turnwise.judges.client import ChatClient

logger = logging.getLogger(__name__)
_OPENING = threading.Lock()  # no field of the model, because an object with a lock could not be pickled


@dataclass(slots=True)
class CachedModel:
    """A model at an OpenAI-compatible chat endpoint, whose answers are cached by the content of the question.

    Args:
        client: client that sends the requests.
        model: name of the model at the endpoint. The name is part of the cache key, so different models need different
            names.
        cache: path of the file that caches answers. None means that answers are not cached.
        temperature: sampling temperature of the model.
        max_tokens: maximum length of an answer in tokens, including the model's reasoning.
        extra: further keys of the request, such as ``chat_template_kwargs`` or ``seed``.

    Raises:
        ValueError: an argument is out of range.
    """

    what: ClassVar[str]  # what the model is used for, in messages and in the name of the thread
    ours: ClassVar[tuple[str, ...]] = ("model", "messages", "temperature", "max_tokens", "stream", "n")
    client: ChatClient
    model: str
    cache: str | None = field(default=None, kw_only=True)
    temperature: float = field(default=0.0, kw_only=True)
    max_tokens: int = field(default=1024, kw_only=True)
    extra: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    _store: Cache | None = field(default=None, init=False, repr=False)
    _background: Background | None = field(default=None, init=False, repr=False)
    _counts: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model must name the model at the endpoint, got an empty name")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if self.max_tokens < 16:
            raise ValueError(f"max_tokens must be at least 16, got {self.max_tokens}")
        if taken := sorted(set(self.extra) & set(self.ours)):
            raise ValueError(f"extra must not set {', '.join(taken)}: every request sets them anyway; leave them out")

    def open(self) -> Background:
        """Opens the cache and returns the thread that sends requests. Several threads may call this method.

        Raises:
            InputError: the cache cannot be opened.
        """
        with _OPENING:
            if self._background is None:
                self._store = Cache(self.cache) if self.cache else None
                self._background = Background(self.what)
            return self._background

    def close(self) -> None:
        """Ends the running requests. This object can be used again afterwards."""
        if self._background is not None:
            self._background.close(self.client.close())
            self._background = None
        if self._store is not None:
            self._store.close()
            self._store = None

    def _request(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        own = {"model": self.model, "messages": messages}
        return {**own, "temperature": self.temperature, "max_tokens": self.max_tokens, **self.extra}

    def _cached(self, key: str) -> dict[str, Any] | None:
        """Returns the cached answer of a question; None if there is none or if the cache fails."""
        try:
            return self._store.get(key) if self._store is not None else None
        except CacheError as error:
            self._tell(error)
            return None

    def _keep(self, key: str, about: str, value: dict[str, Any]) -> dict[str, Any]:
        """Caches an answer. Returns the answer to use, which another process may have cached earlier."""
        try:
            return self._store.put(key, about, value) if self._store is not None else value
        except CacheError as error:
            self._tell(error)
            return value

    def _tell(self, error: CacheError) -> None:
        if not self._counts["cache_errors"]:
            logger.warning("%s: the cache cannot be used now (%s); answers are used but not cached", self.what, error)
        self._counts["cache_errors"] += 1
