"""A model behind any OpenAI-compatible chat endpoint as the user, with the benchmark's own instructions to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnwise.endpoints import Background
from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.tau2.package import of_package
from turnwise.envs.tau2.user import ENDS, Talk
from turnwise.judges.cache import Cache, CacheError, key_of
from turnwise.judges.client import ChatClient, ChatFault

logger = logging.getLogger(__name__)

_OURS = ("model", "messages", "temperature", "max_tokens", "stream", "n")


@dataclass(slots=True)
class EndpointUser:
    """See ``turnwise.envs.tau2.user.User``.

    Answers are kept by the content of their questions, so that repeating a conversation gives the same answers. Without an answer
    the environment has failed: an ``EnvironmentFault``, never a lost episode.

    Args:
        client: where and how to ask.
        model: its name there; part of every question's address.
        cache: the file that keeps answers; null: none, and episodes that are repeated differ where the model does.
        temperature, max_tokens: of an answer.
        extra: further keys of the request.

    Raises:
        ValueError: an argument is out of range.
    """

    scripted: ClassVar[bool] = False
    client: ChatClient
    model: str = "user"
    cache: str | None = None
    temperature: float = 0.0
    max_tokens: int = 512
    extra: Mapping[str, Any] = field(default_factory=dict)
    _store: Cache | None = field(default=None, init=False, repr=False)
    _background: Background | None = field(default=None, init=False, repr=False)
    _told: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model must name the model that plays the user, got an empty name")
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, got {self.temperature}")
        if self.max_tokens < 16:
            raise ValueError(f"max_tokens must be at least 16, got {self.max_tokens}")
        if taken := sorted(set(self.extra) & set(_OURS)):
            raise ValueError(f"extra must not set {', '.join(taken)}: the user sets them itself")

    def begin(self, scenario: Mapping[str, Any]) -> Talk:
        """Returns the model's first message.

        Raises:
            EnvironmentFault: no answer could be had, as of ``reply``.
            InputError: the cache cannot be opened, as of ``reply``.
        """
        return self._go_on(Talk(scenario))

    def reply(self, talk: Talk, message: str, transferred: bool, satisfied: bool) -> Talk:
        """Returns the model's answer; that a transfer was called, or all is done, it has to read in the message."""
        return self._go_on(Talk(talk.scenario, (*talk.messages, ("agent", message))))

    def _go_on(self, talk: Talk) -> Talk:
        answer = self._ask(self._request(talk))
        over = any(word in answer for word in ENDS)
        return Talk(talk.scenario, (*talk.messages, ("user", answer)), ended=over)

    def _request(self, talk: Talk) -> dict[str, Any]:
        scenario = of_package("data_model.tasks", "UserScenario").model_validate(dict(talk.scenario))
        guidelines = of_package("utils", "USER_SIMULATOR_GUIDELINES")
        roles = {"user": "assistant", "agent": "user"}  # the model is the user: its own messages are the assistant's
        return {
            "model": self.model,
            "messages": [
                {"role": "system", "content": f"{guidelines}\n<scenario>\n{scenario}\n</scenario>\n"},
                {"role": "user", "content": str(of_package("common.dataset", "USER_MESSAGE").text)},
                *({"role": roles[who], "content": text} for who, text in talk.messages),
            ],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **self.extra,
        }

    def _ask(self, request: dict[str, Any]) -> str:
        if self._background is None:
            self._store = Cache(self.cache) if self.cache else None
            self._background = Background("tau2-user")
        key = key_of(request)
        stored = self._kept(key)
        if stored is not None:
            return stored
        try:
            answer = self._background.submit(self._question(request)).result()
        except ChatFault as fault:
            raise EnvironmentFault(f"tau2: the model that plays the user did not answer ({fault.kind})") from None
        return self._keep(key, answer)

    async def _question(self, request: dict[str, Any]) -> str:
        async with self.client.place() as deadline:
            reply = await self.client.ask(request, deadline)
        if not reply.text.strip():
            raise ChatFault("garbage", "an empty answer")
        return reply.text.strip()

    def _kept(self, key: str) -> str | None:
        try:
            found = self._store.get(key) if self._store is not None else None
        except CacheError as error:
            self._tell(error)
            return None
        return None if found is None else str(found["text"])

    def _keep(self, key: str, answer: str) -> str:
        try:
            kept = self._store.put(key, self.model, {"text": answer}) if self._store is not None else {"text": answer}
        except CacheError as error:
            self._tell(error)
            return answer
        return str(kept["text"])

    def _tell(self, error: CacheError) -> None:
        if not self._told:
            logger.warning("tau2 user: the cache fails (%s); answers are used and not kept", error)
        self._told = True

    def close(self) -> None:
        """End what is running. The user can be asked again afterwards."""
        if self._background is not None:
            self._background.close(self.client.close())
            self._background = None
        if self._store is not None:
            self._store.close()
            self._store = None
