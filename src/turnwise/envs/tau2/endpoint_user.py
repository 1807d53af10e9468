"""Simulates the user of tau2-bench with a model behind an OpenAI-compatible chat endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnwise.endpoints import Fault
from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.tau2.package import of_package
from turnwise.envs.tau2.user import ENDS, Talk
from turnwise.judges.chat import CachedModel, key_of


@dataclass(slots=True)
class EndpointUser(CachedModel):
    """A simulated user who is played by a model. It implements ``turnwise.envs.tau2.user.User``.

    The model gets the benchmark's own instructions. If the model gives no answer, an ``EnvironmentFault`` is raised,
    and the episode does not count as lost. With the cache, a repeated conversation gets the same answers.
    """

    what: ClassVar[str] = "tau2-user"
    scripted: ClassVar[bool] = False
    model: str = "user"
    max_tokens: int = field(default=512, kw_only=True)

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
        answer = self._ask(self._request(_messages(talk)))
        over = any(word in answer for word in ENDS)
        return Talk(talk.scenario, (*talk.messages, ("user", answer)), ended=over)

    def _ask(self, request: dict[str, Any]) -> str:
        loop, key = self.open(), key_of(request)
        answer = self._cached(key)
        if answer is None:
            try:
                said = loop.start(self._question(request)).result()
            except Fault as fault:
                raise EnvironmentFault(f"tau2: the model that plays the user did not answer ({fault.kind})") from None
            answer = self._keep(key, self.model, {"text": said})
        return str(answer["text"])

    async def _question(self, request: dict[str, Any]) -> str:
        reply = await self.client.ask(request)
        if not reply.text.strip():
            raise Fault("garbage", "an empty answer")
        return reply.text.strip()


def _messages(talk: Talk) -> list[dict[str, str]]:
    scenario = of_package("data_model.tasks", "UserScenario").model_validate(dict(talk.scenario))
    guidelines = of_package("utils", "USER_SIMULATOR_GUIDELINES")
    # the model plays the user, so the user's messages have the role "assistant"
    roles = {"user": "assistant", "agent": "user"}
    return [
        {"role": "system", "content": f"{guidelines}\n<scenario>\n{scenario}\n</scenario>\n"},
        {"role": "user", "content": str(of_package("common.dataset", "USER_MESSAGE").text)},
        *({"role": roles[who], "content": text} for who, text in talk.messages),
    ]
