"""One rollout of the library, stopped wherever it asks its model: the policy's reply is what its client returns."""

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

from turnwise.data.toolcalls.formats import PARSERS, Format
from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.envs import loop
from turnwise.envs.environment import EnvironmentFault, Step
from turnwise.envs.tools import Tools, signature, templated
from turnwise.errors import InputError
from turnwise.types import Message

HOW = "Call a function as name(parameter=value), several as [f(a=1), g()]."


class _Asked:
    """What the rollout and the episode exchange. It is made on the loop, which the queues belong to."""

    def __init__(self) -> None:
        self.prompts: asyncio.Queue[tuple[Sequence[Any], Sequence[Any]]] = asyncio.Queue()
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self.rollout: asyncio.Task[Any] | None = None


@cache
def _client() -> type:
    """Returns the library's client that asks an :class:`_Asked` for each response."""
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
            raise NotImplementedError("the policy's replies are no messages of a provider")

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
    """Returns the messages and tools with which the rollout asks its model next; None where it has ended."""
    assert asked.rollout is not None
    prompt = asyncio.ensure_future(asked.prompts.get())
    try:
        await asyncio.wait({prompt, asked.rollout}, return_when=asyncio.FIRST_COMPLETED)
        return prompt.result() if prompt.done() else None
    finally:
        prompt.cancel()


class VerifiersEpisode:
    """See ``turnwise.envs.replay.Episode``.

    Args:
        environment: of the library.
        row: of its data set.
        form: how the policy writes calls of tools.
        threshold: the reward from which the episode is won.
        seconds: time limit of each answer of the environment.
        where: names the task in messages.

    Raises:
        EnvironmentFault: the environment failed.
        InputError: its messages are no text.
    """

    def __init__(
        self, environment: Any, row: Mapping[str, Any], form: Format, threshold: float, seconds: float, where: str
    ) -> None:
        self.form, self.threshold, self.seconds, self.where = form, threshold, seconds, where
        self._owner = os.getpid()
        self._asked = loop.run(_start(environment, row), seconds, where)
        try:
            asked = self._wait()
        except BaseException:
            self.close()
            raise
        if asked is None:
            raise EnvironmentFault(f"{where}: the rollout ended before it asked for a reply")
        self._prompt, tools = asked
        self._tools: Tools = tuple(
            {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
            for t in tools
        )

    @property
    def tools(self) -> Tools:
        """Returns what the chat template shows; nothing where the opening lists the functions."""
        return self._tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        """Returns the row's prompt; where no chat template shows the functions, they follow its system message."""
        messages = self._plain(self._prompt)
        if self._tools and not templated(self.form):
            listed = "\n".join([*map(signature, self._tools), HOW])
            if messages and messages[0]["role"] == "system":
                messages[0] = {"role": "system", "content": f"{messages[0]['content']}\n\n{listed}"}
            else:
                messages.insert(0, {"role": "system", "content": listed})
        return messages

    def act(self, text: str) -> Step:
        """Gives a reply to the rollout, and returns what the environment says to it.

        Raises:
            EnvironmentFault: the environment failed.
            InputError: it rewrites the messages before its answer, or answers with what is no text.
        """
        before = len(self._prompt)
        loop.soon(lambda: self._asked.replies.put_nowait(self._response(text)))
        asked = self._wait()
        if asked is None:
            return self._ended()
        prompt, _ = asked
        if len(prompt) <= before or prompt[before].role != "assistant" or list(prompt[:before]) != list(self._prompt):
            raise InputError(
                f"{self.where}: the environment changes messages that were read before; only growing dialogues can be trained"
            )
        self._prompt = prompt
        return self._shown(self._plain(prompt[before + 1 :]))

    def close(self) -> None:
        """Ends the rollout. The library then cleans up what it opened. A forked process leaves it to its parent."""
        if (rollout := self._asked.rollout) is not None and os.getpid() == self._owner:
            loop.soon(rollout.cancel)

    def _wait(self) -> tuple[Sequence[Any], Sequence[Any]] | None:
        return loop.run(_next(self._asked), self.seconds, self.where)

    def _ended(self) -> Step:
        """Returns the last step with the rubric's reward. A failure that is not the policy's is a fault."""
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
            raise EnvironmentFault(f"{self.where}: the rubric's reward is {reward}")
        won = reward >= self.threshold
        last = self._shown(self._plain(_final(state)))
        metrics = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
        info = {"stopped": state.get("stop_condition"), **metrics}
        return Step(last.observation, reward, True, won, info, last.messages)

    def _response(self, text: str) -> Any:
        """Returns a reply as the library's response: its calls where the environment has tools and they can be read."""
        from verifiers.types import Response, ResponseMessage, ToolCall, Usage

        content, thinking, calls = text, None, None
        if self._tools:
            try:
                reply = PARSERS[self.form](text, self._tools)
            except ToolCallError:  # the environment sees what is no call as text
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
        """Returns an answer: as messages where the template shows answers of tools, else as one user message."""
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
                f"{self.where}: a message has a part that is no text (a picture, a sound); only text can be played"
            )
        return "".join(map(str, parts))


def _final(state: Any) -> Sequence[Any]:
    """Returns what the environment says at its end; nothing where it says nothing."""
    from verifiers.utils.message_utils import maybe_normalize_messages

    said = state.get("final_env_response")
    return maybe_normalize_messages(said, field_name="final_env_response") if said else ()


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), ensure_ascii=False)
