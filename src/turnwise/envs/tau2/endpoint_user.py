"""Simulates the user of tau2-bench with a model behind an OpenAI-compatible chat endpoint."""

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
    """A simulated user who is played by a model. It implements ``turnwise.envs.tau2.user.User``.

    The model gets the benchmark's own instructions. If the model gives no answer, an ``EnvironmentFault`` is raised,
    and the episode does not count as lost.

    Args:
        client: the HTTP client, which holds the address of the endpoint and the settings of the requests.
        model: the model's name at the endpoint, which is part of the cache key.
        cache: the file of cached answers, by which a repeated conversation gets the same answers. None means no cache.
        temperature: sampling temperature.
        max_tokens: maximum length of an answer in tokens.
        extra: further keys of each request.

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
            raise ValueError(f"extra must not set {', '.join(taken)}: the simulated user sets these keys itself")

    def begin(self, scenario: Mapping[str, Any]) -> Talk:
        """Returns a conversation that consists of the model's first message.

        Raises:
            EnvironmentFault: the model gave no answer. :meth:`reply` raises this error too.
            InputError: the cache cannot be opened. :meth:`reply` raises this error too.
        """
        return self._go_on(Talk(scenario))

    def reply(self, talk: Talk, message: str, transferred: bool, satisfied: bool) -> Talk:
        """Returns the conversation with the agent's message and the model's answer added.

        ``transferred`` and ``satisfied`` are ignored.
        """
        return self._go_on(Talk(talk.scenario, (*talk.messages, ("agent", message))))

    def _go_on(self, talk: Talk) -> Talk:
        answer = self._ask(self._request(talk))
        over = any(word in answer for word in ENDS)
        return Talk(talk.scenario, (*talk.messages, ("user", answer)), ended=over)

    def _request(self, talk: Talk) -> dict[str, Any]:
        scenario = of_package("data_model.tasks", "UserScenario").model_validate(dict(talk.scenario))
        guidelines = of_package("utils", "USER_SIMULATOR_GUIDELINES")
        # the model plays the user, so the user's messages have the role "assistant"
        roles = {"user": "assistant", "agent": "user"}
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

    def open(self) -> None:
        """Opens the cache and starts the thread that sends requests. Call this before several threads use this object.

        Raises:
            InputError: the cache cannot be opened.
        """
        if self._background is None:
            self._store = Cache(self.cache) if self.cache else None
            self._background = Background("tau2-user")

    def _ask(self, request: dict[str, Any]) -> str:
        self.open()
        assert self._background is not None
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
            logger.warning(
                "tau2: the cache of the simulated user's answers fails (%s); the answers are used but not cached", error
            )
        self._told = True

    def close(self) -> None:
        """Ends the running requests to the model. This object can be used again afterwards."""
        if self._background is not None:
            self._background.close(self.client.close())
            self._background = None
        if self._store is not None:
            self._store.close()
            self._store = None
