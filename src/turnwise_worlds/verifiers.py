"""``env=verifiers``: an installed environment of the verifiers library, which runs and scores the episodes.

The library's own rollout runs with a client that waits for the policy's replies.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from turnwise.data.tool_schema import signature, tool_of
from turnwise.data.toolcalls import Format, parsed
from turnwise.env import EnvironmentFault, Step, check_tasks, first_tasks, same_text
from turnwise.errors import InputError
from turnwise.types import Message, Task
from turnwise_worlds import workers
from turnwise_worlds.replayed_episodes import ReplayedEnv, ReplayedSession
from turnwise_worlds.tool_environment import HOW, Tools, templated

_FOLD = 10  # without an evaluation set, the first of every ten rows is in the split seen, and the sixth in unseen
_PASS = 0.5  # the library's default of ``pass_threshold``


class VerifiersEnv(ReplayedEnv):
    """An environment of the verifiers library. ``conf/env/verifiers.yaml`` explains the arguments."""

    name = "verifiers"

    def __init__(
        self,
        id: str | None = None,  # noqa: A002 - the library uses this name
        args: Mapping[str, Any] | None = None,
        horizon: PositiveInt | None = None,
        format: Format = "hermes",  # noqa: A002 - the configuration uses this name
        threshold: float | None = None,
        timeout: PositiveFloat = 60.0,
    ) -> None:
        if not id:
            raise InputError("env.id: name an installed environment to play, as env.id=my-environment")
        self._environment = load_verifiers_environment(id, args or {})
        turns = int(self._environment.max_turns) if horizon is None else horizon
        if turns < 1:
            raise InputError(f"env.horizon: the environment {id!r} does not limit the number of turns; set env.horizon")
        self.horizon = self._environment.max_turns = turns
        own = getattr(self._environment, "pass_threshold", _PASS)
        self.threshold = float(own if threshold is None else threshold)
        self.id, self.format, self.timeout = id, format, timeout
        self._rows = cache(self._listed)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        check_tasks(split, count)
        return first_tasks(self._rows(split), count, f"split {split} of {self.id}")

    def _listed(self, split: str) -> list[Task]:
        return [
            Task(self.name, name, split, row, str(row["task"]) if isinstance(row.get("task"), str) else "")
            for name, row in verifiers_rows(self._environment, split)
        ]

    def open_episode(self, task: Task) -> VerifiersEpisode:
        return VerifiersEpisode(self, self._environment, task)

    def accepts(self, session: ReplayedSession, action: str, expert: str) -> bool:
        """Returns whether the policy's reply equals the expert's reply, or wins at once by the environment's rubric."""
        return same_text(action, expert) or session.fork().step(action).won


Request = tuple[Sequence[Any], Sequence[Any]]  # the messages and tools with which the library requests a reply


@cache
def _client() -> type:
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


class VerifiersEpisode:
    """The library's own rollout, which runs in the event loop and waits there for the policy's replies."""

    def __init__(self, env: VerifiersEnv, environment: Any, task: Task) -> None:
        self.form, self.threshold, self.seconds = env.format, env.threshold, env.timeout
        self.where = f"env.id={env.id}, task {task.id}"
        self.prompts: asyncio.Queue[Request | None] = asyncio.Queue()  # None: the rollout has ended
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self._state = workers.start(self._rollout(environment, dict(task.data)))
        try:
            request = self._wait()
        except BaseException:
            self.close()
            raise
        if request is None:
            raise EnvironmentFault(f"{self.where}: the rollout ended before it requested a reply from the policy")
        self._prompt, tools = request
        self._tools: Tools = tuple(tool_of(tool.name, tool.description, tool.parameters) for tool in tools)

    @property
    def tools(self) -> Tools:
        return self._tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        messages = self._plain(self._prompt)
        if self._tools and not templated(self.form):
            listed = "\n".join([*map(signature, self._tools), HOW])
            system = messages.pop(0)["content"] if messages and messages[0]["role"] == "system" else ""
            messages.insert(0, {"role": "system", "content": f"{system}\n\n{listed}" if system else listed})
        return messages

    def act(self, text: str) -> Step:
        before = len(self._prompt)
        workers.soon(partial(self.replies.put_nowait, self._response(text)))
        request = self._wait()
        if request is None:
            return self._ended()
        prompt, _ = request
        if len(prompt) <= before or prompt[before].role != "assistant" or list(prompt[:before]) != list(self._prompt):
            raise InputError(f"{self.where}: the environment may only append messages, but it changed earlier ones")
        self._prompt = prompt
        return self._shown(self._plain(prompt[before + 1 :]))

    def close(self) -> None:
        self._state.cancel()

    async def _rollout(self, environment: Any, row: dict[str, Any]) -> Any:
        try:
            state = await environment.rollout(row, _client()(self), "policy", {})
            await environment.rubric.score_rollout(state)
            await environment.rubric.cleanup(state)
            return state
        finally:
            self.prompts.put_nowait(None)

    def _wait(self) -> Request | None:
        return workers.run_on_worker_loop(self.prompts.get(), self.seconds, self.where)

    def _ended(self) -> Step:
        from verifiers.errors import ToolError
        from verifiers.utils.message_utils import maybe_normalize_messages

        try:
            state = self._state.result(self.seconds)
        except Exception as error:  # a CancelledError too: the rollout was closed
            raise EnvironmentFault(f"{self.where}: {type(error).__name__}: {error}") from error
        if (failed := state.get("error")) is not None and not isinstance(failed, ToolError):
            raise EnvironmentFault(f"{self.where}: {type(failed).__name__}: {failed.__cause__ or failed}")
        reward = float(state["reward"])
        if not math.isfinite(reward):
            raise EnvironmentFault(f"{self.where}: the rubric returned the reward {reward}, which is not finite")
        won = reward >= self.threshold
        messages = state.get("final_env_response") or []
        last = self._shown(self._plain(maybe_normalize_messages(messages, field_name="final_env_response")))
        metrics = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
        info = {"stopped": state.get("stop_condition"), **metrics}
        return Step(last.observation, reward, True, won, info, last.messages)

    def _response(self, text: str) -> Any:
        from verifiers.types import Response, ResponseMessage, ToolCall, Usage

        # a reply without readable calls is passed on as text
        reply = parsed(text, self.form, self._tools) if self._tools else None
        content, thinking, calls = text, None, None
        if reply is not None and reply.calls:
            content, thinking = reply.content, reply.thinking or None
            calls = [
                ToolCall(
                    id=f"call_{place}_{len(self._prompt)}",
                    name=call.name,
                    arguments=json.dumps(dict(call.arguments), ensure_ascii=False),
                )
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
        # the separate messages stay if some are tool messages and the chat template shows them
        text = "\n".join(str(message["content"]) for message in messages)
        keeps_roles = any(message["role"] != "user" for message in messages) and templated(self.form)
        return Step(text, messages=tuple(messages) if keeps_roles else ())

    def _plain(self, messages: Sequence[Any]) -> list[Message]:
        return [{"role": message.role, "content": self._text(message.content)} for message in messages]

    def _text(self, content: Any) -> str:
        if content is None or isinstance(content, str):
            return content or ""
        if not all(part.get("type") == "text" for part in content):
            raise InputError(f"{self.where}: a message has a picture or a sound; choose a text environment")
        return "".join(str(part["text"]) for part in content)


def load_verifiers_environment(name: str, arguments: Mapping[str, Any]) -> Any:
    if find_spec("verifiers") is None:
        raise InputError("env=verifiers needs the package verifiers, which is not installed; `make verifiers` does it")
    import verifiers

    if "VF_LOG_LEVEL" not in os.environ:
        verifiers.setup_logging("WARNING")
    # the library's environments set handlers of these signals that would end the process at once
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)} if main else {}
    try:
        environment = verifiers.load_environment(name, **arguments)
    except Exception as error:  # the module may raise any exception
        raise InputError(f"env.id: {name!r} cannot be loaded ({error}); install it, or correct env.args") from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if not isinstance(environment, verifiers.MultiTurnEnv) or getattr(environment, "requires_group_rollouts", False):
        raise InputError(
            f"env.id: {name!r} ({type(environment).__name__}) cannot be used; choose a single-turn, multi-turn or tool "
            "environment whose rubric scores each rollout alone"
        )
    return environment


def verifiers_rows(environment: Any, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the id and the content of each row of a split (docs/environments.md), in the order of the data set.

    A row of ``seen`` or ``unseen`` is left out if a row of ``train`` has the same prompt, question and answer.
    """
    trained, held_out = environment.build_dataset(), environment.build_eval_dataset()
    every = range(len(trained) if trained is not None else 0)
    if held_out is not None:
        evaluated = range(len(held_out))
        parts: Mapping[str, Sequence[int]] = {"train": every, "seen": evaluated[::2], "unseen": evaluated[1::2]}
    else:
        parts = {"seen": every[::_FOLD], "unseen": every[_FOLD // 2 :: _FOLD]}
        parts = {**parts, "train": sorted(set(every).difference(*parts.values()))}
    data, source = (trained, "train") if split == "train" or held_out is None else (held_out, "eval")
    chosen = parts[split]
    if split != "train":
        learned = {_question(trained[place]) for place in parts["train"]}
        chosen = [place for place in parts[split] if _question(data[place]) not in learned]
    for place in chosen:
        yield f"{source}/{place}", json.loads(json.dumps(data[place], allow_nan=False))


def _question(row: Mapping[str, Any]) -> str:
    return json.dumps([row.get("prompt"), row.get("question"), row.get("answer")], sort_keys=True, default=str)
