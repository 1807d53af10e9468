"""Runs one rollout of the verifiers library as an episode, with a client that waits for the policy's replies."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from turnwise.data.tool_schema import signature
from turnwise.data.toolcalls import PARSERS, Format, ToolCallError
from turnwise.envs import event_loop
from turnwise.envs.environment import EnvironmentFault, Step
from turnwise.envs.tool_messages import HOW, Tools, templated
from turnwise.errors import InputError
from turnwise.types import Message


class _Asked:
    """The queues through which the library's rollout and the episode exchange prompts and replies.

    The queues must be created in the event loop.
    """

    def __init__(self) -> None:
        self.prompts: asyncio.Queue[tuple[Sequence[Any], Sequence[Any]]] = asyncio.Queue()
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self.rollout: asyncio.Task[Any] | None = None


@cache
def _client() -> type:
    """Returns a subclass of the library's client, which gets each reply from the queues of an :class:`_Asked`."""
    from verifiers import Client

    class Policy(Client):  # type: ignore[misc]
        async def get_response(
            self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **more: Any
        ) -> Any:
            self.client.prompts.put_nowait((list(prompt), list(tools or ())))
            return await self.client.replies.get()

        async def close(self) -> None:
            pass

        def _unused(self, *given: Any, **named: Any) -> Any:
            raise NotImplementedError("the policy's replies are not messages of a model provider")

        setup_client = to_native_tool = to_native_prompt = get_native_response = _unused
        raise_from_native_response = from_native_response = _unused

    return Policy


async def _start(environment: Any, row: Mapping[str, Any]) -> _Asked:
    asked = _Asked()
    asked.rollout = asyncio.create_task(_rollout(environment, row, asked))
    return asked


async def _rollout(environment: Any, row: Mapping[str, Any], asked: _Asked) -> Any:
    state = await environment.rollout(dict(row), _client()(asked), "policy", {})
    await environment.rubric.score_rollout(state)
    await environment.rubric.cleanup(state)
    return state


async def _next(asked: _Asked) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Returns the messages and tools of the rollout's next request to its model; None if the rollout has ended."""
    assert asked.rollout is not None
    prompt = asyncio.ensure_future(asked.prompts.get())
    try:
        await asyncio.wait({prompt, asked.rollout}, return_when=asyncio.FIRST_COMPLETED)
        return prompt.result() if prompt.done() else None
    finally:
        prompt.cancel()


class VerifiersEpisode:
    """A rollout of the verifiers library as an episode. It implements ``turnwise.envs.shared_episode.Episode``.

    Args:
        environment: an environment of the library.
        row: a row of the environment's data set.
        form: the format in which the policy writes tool calls.
        threshold: the episode is won if its reward is at least ``threshold``.
        seconds: time limit of each answer of the environment.
        where: the task's name, for error messages.

    Raises:
        EnvironmentFault: the environment failed.
        InputError: the environment's messages contain parts that are not text.
    """

    def __init__(
        self, environment: Any, row: Mapping[str, Any], form: Format, threshold: float, seconds: float, where: str
    ) -> None:
        self.form, self.threshold, self.seconds, self.where = form, threshold, seconds, where
        self._owner = os.getpid()
        self._asked = event_loop.run(_start(environment, row), seconds, where)
        try:
            asked = self._wait()
        except BaseException:
            self.close()
            raise
        if asked is None:
            raise EnvironmentFault(f"{where}: the rollout ended before it requested a reply from the policy")
        self._prompt, tools = asked
        self._tools: Tools = tuple(
            {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
            for t in tools
        )

    @property
    def tools(self) -> Tools:
        """Returns the tools that the chat template shows; empty if the system message lists the tools."""
        return self._tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        """Returns the messages of the rollout's first prompt.

        If the chat template does not show the tools, a list of the tools is added to the system message.
        """
        messages = self._plain(self._prompt)
        if self._tools and not templated(self.form):
            listed = "\n".join([*map(signature, self._tools), HOW])
            if messages and messages[0]["role"] == "system":
                messages[0] = {"role": "system", "content": f"{messages[0]['content']}\n\n{listed}"}
            else:
                messages.insert(0, {"role": "system", "content": listed})
        return messages

    def act(self, text: str) -> Step:
        """Passes the policy's reply to the library's rollout and returns the environment's answer.

        Raises:
            EnvironmentFault: the environment failed.
            InputError: the environment changes earlier messages, or its answer contains parts that are not text.
        """
        before = len(self._prompt)
        event_loop.soon(lambda: self._asked.replies.put_nowait(self._response(text)))
        asked = self._wait()
        if asked is None:
            return self._ended()
        prompt, _ = asked
        if len(prompt) <= before or prompt[before].role != "assistant" or list(prompt[:before]) != list(self._prompt):
            raise InputError(
                f"{self.where}: the environment changed earlier messages of the conversation, but it may only append "
                "messages; choose another environment"
            )
        self._prompt = prompt
        return self._shown(self._plain(prompt[before + 1 :]))

    def close(self) -> None:
        """Ends the library's rollout. In a forked process this method does nothing."""
        if (rollout := self._asked.rollout) is not None and os.getpid() == self._owner:
            event_loop.soon(rollout.cancel)

    def _wait(self) -> tuple[Sequence[Any], Sequence[Any]] | None:
        return event_loop.run(_next(self._asked), self.seconds, self.where)

    def _ended(self) -> Step:
        """Returns the last step of the episode, with the reward that the rubric gives.

        Raises:
            EnvironmentFault: the rollout ended with an error that is not the error of a tool.
        """
        from verifiers.errors import ToolError

        assert self._asked.rollout is not None
        try:
            state = self._asked.rollout.result()
        except asyncio.CancelledError:
            raise EnvironmentFault(f"{self.where}: the rollout was closed") from None
        except Exception as error:
            raise EnvironmentFault(f"{self.where}: {type(error).__name__}: {error}") from error
        if (failed := state.get("error")) is not None and not isinstance(failed, ToolError):
            raise EnvironmentFault(f"{self.where}: {type(failed).__name__}: {failed.__cause__ or failed}")
        reward = float(state["reward"])
        if not math.isfinite(reward):
            raise EnvironmentFault(
                f"{self.where}: the rubric returned the reward {reward}, which is not a finite number"
            )
        won = reward >= self.threshold
        last = self._shown(self._plain(_final(state)))
        metrics = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
        info = {"stopped": state.get("stop_condition"), **metrics}
        return Step(last.observation, reward, True, won, info, last.messages)

    def _response(self, text: str) -> Any:
        """Returns the policy's reply in the library's format: with its calls if they can be parsed, else as text."""
        from verifiers.types import Response, ResponseMessage, ToolCall, Usage

        content, thinking, calls = text, None, None
        if self._tools:
            try:
                reply = PARSERS[self.form](text, self._tools)
            except ToolCallError:  # a reply without readable calls is passed on as text
                reply = None
            if reply is not None and reply.calls:
                content, thinking = reply.content, reply.thinking or None
                calls = [
                    ToolCall(id=f"call_{place}_{len(self._prompt)}", name=call.name, arguments=_json(call.arguments))
                    for place, call in enumerate(reply.calls)
                ]
        message = ResponseMessage(
            content=content,
            reasoning_content=thinking,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        usage = Usage(prompt_tokens=0, reasoning_tokens=0, completion_tokens=0, total_tokens=0)
        return Response(id=uuid.uuid4().hex, created=int(time.time()), model="policy", usage=usage, message=message)

    def _shown(self, messages: list[Message]) -> Step:
        """Returns a step with the environment's answer.

        The answer keeps its separate messages if it has tool messages and the chat template shows them. Otherwise it
        becomes one user message.
        """
        text = "\n".join(str(message["content"]) for message in messages)
        kept = any(message["role"] != "user" for message in messages) and templated(self.form)
        return Step(text, messages=tuple(messages) if kept else ())

    def _plain(self, messages: Sequence[Any]) -> list[Message]:
        return [{"role": message.role, "content": self._text(message.content)} for message in messages]

    def _text(self, content: Any) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        parts = [part.get("text") if part.get("type") == "text" else None for part in content]
        if None in parts:
            raise InputError(
                f"{self.where}: a message has a part that is not text (a picture, a sound); choose a text environment"
            )
        return "".join(map(str, parts))


def _final(state: Any) -> Sequence[Any]:
    """Returns the environment's last messages; empty if there are none."""
    from verifiers.utils.message_utils import maybe_normalize_messages

    said = state.get("final_env_response")
    return maybe_normalize_messages(said, field_name="final_env_response") if said else ()


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), ensure_ascii=False)
