"""``env=agent``: each request of the user's agent program is one turn of the policy, and its score the reward.

The gateway is an HTTP server that holds each chat-completions request of a program until the policy has replied:

    agent program  --request-->  gateway  --PendingRequest-->  AgentRequestQueue  -->  the rollout's thread
                   <--answer---           <--reply--
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import queue
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from aiohttp import web
from pydantic import AfterValidator, ConfigDict, Field, PositiveInt

from turnwise.data.tool_schema import arguments_of, check_tool, function_of
from turnwise.data.toolcalls import Format, parsed
from turnwise.env import EnvironmentFault, Step, check_tasks, first_tasks, same_text
from turnwise.errors import InputError
from turnwise.files import parse_json
from turnwise.types import Message, Task
from turnwise_worlds import data_files, workers
from turnwise_worlds.replayed_episodes import Opening, ReplayedEnv, ReplayedSession
from turnwise_worlds.sandbox.folder_value import File, Tree, check_path, folder_tree, laid_over, read_folder
from turnwise_worlds.sandbox.sandbox import HOST, Bubblewrap, CallResult, ServerPort
from turnwise_worlds.tool_environment import read_calls
from turnwise_worlds.workspace import Box, faults

# -- the gateway -------------------------------------------------------------------------------------------------------


ANSWERS = ("tool", "user")  # roles of the messages that may follow the policy's reply
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
CHAT = "/v1/chat/completions"
BODY = 16 << 20  # maximum size of a request in bytes


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request's messages and tools as chat templates expect them: the arguments of calls are JSON objects, not text."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    stream: bool = False


def agent_reply_message(text: str, tools: Sequence[Mapping[str, Any]], form: Format, number: int) -> Message:
    """Returns a reply as an assistant message. ``number`` is the reply's number in its episode, so that a repeated
    episode has equal ids of calls. A reply whose calls cannot be parsed stays text.
    """
    reply = parsed(text, form, tools)
    if not tools or reply is None or not reply.calls:
        return {"role": "assistant", "content": text}
    calls = [
        _called(f"call_{number}_{place}", call.name, dict(call.arguments)) for place, call in enumerate(reply.calls)
    ]
    return {"role": "assistant", "content": reply.content, "tool_calls": calls}


def _called(identity: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def continuation_of_request(before: Conversation, reply: Message, after: Conversation) -> tuple[Message, ...] | None:
    """Returns what the request ``after`` adds to ``before`` and the reply; None unless it repeats all messages and
    tools and adds messages of tools and users alone, so that appending their tokens is enough.
    """
    known = [*before.messages, reply]
    if before.tools != after.tools or len(after.messages) <= len(known):
        return None
    if not all(_said(one) == _said(other) for one, other in zip(known, after.messages, strict=False)):
        return None
    added = after.messages[len(known) :]
    return added if all(message["role"] in ANSWERS for message in added) else None


def _said(message: Message) -> tuple[Any, ...]:
    """The parts that a later request must repeat. A repeated reply may lack whitespace at its ends and ids of calls."""
    content = str(message.get("content") or "")
    if message["role"] != "assistant":
        return message["role"], content, message.get("tool_call_id")
    calls = [function_of(call) for call in message.get("tool_calls") or ()]
    return "assistant", content.strip(), [(call.get("name"), arguments_of(call)) for call in calls]


def read_agent_request(body: Mapping[str, Any]) -> Conversation:
    """Reads the JSON body of a request; a ``ValueError`` tells the program's author why it is refused. The run's sampling
    settings apply; those of the request are ignored.
    """
    plain = {
        "n": (None, 1),
        "logprobs": (None, False),
        "functions": (None, []),
        "response_format": (None, {"type": "text"}),
    }
    for key, allowed in plain.items():
        if body.get(key) not in allowed:
            raise ValueError(f"{key}={body[key]!r:.60} is not supported; leave {key} out of the request")
    if not body.get("messages"):
        raise ValueError("messages must be a list with at least one message")
    tools = tuple(body.get("tools") or ())
    for place, tool in enumerate(tools):
        if problem := check_tool(tool):
            raise ValueError(f"tools[{place}]: {problem}")
    messages = tuple(_request_message(message, f"messages[{place}]") for place, message in enumerate(body["messages"]))
    return Conversation(messages, tools, bool(body.get("stream")))


def _request_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if message["role"] not in ROLES:
        raise ValueError(f"{where}.role must be one of {', '.join(ROLES)}, got {message['role']!r:.60}")
    content = message.get("content") or ""
    if not isinstance(content, str):
        parts = [part.get("text", part.get("refusal")) for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{where}.content has a part that is not text; the policy can read only text")
        content = "".join(parts)
    plain: dict[str, Any] = {"role": ROLES[message["role"]], "content": content}
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [
            _called(str(call.get("id", "")), str(call["function"]["name"]), arguments_of(call)) for call in calls
        ]
    return plain | {key: message[key] for key in ("tool_call_id", "name") if isinstance(message.get(key), str)}


def agent_completion(reply: Message, stream: bool) -> dict[str, Any]:
    """Returns the body that answers a request, or the only chunk of a stream: a reply is complete before it is sent."""
    calls = [
        {
            **call,
            "index": place,
            "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
        }
        for place, call in enumerate(reply.get("tool_calls") or ())
    ]
    message = {"role": "assistant", "content": reply["content"] or None, **({"tool_calls": calls} if calls else {})}
    kind, key = ("chat.completion.chunk", "delta") if stream else ("chat.completion", "message")
    choice = {"index": 0, key: message, "logprobs": None, "finish_reason": "tool_calls" if calls else "stop"}
    name, now = f"chatcmpl-{secrets.token_hex(8)}", int(time.time())
    return {"id": name, "object": kind, "created": now, "model": "policy", "choices": [choice]}


@dataclass(slots=True, eq=False)
class PendingRequest:
    conversation: Conversation
    reply: Future[Message] = field(default_factory=Future)

    def answer(self, reply: Message) -> bool:
        taken = self.reply.set_running_or_notify_cancel()
        if taken:
            self.reply.set_result(reply)
        return taken


class AgentRequestQueue:
    """The requests of one episode, in order of arrival. Every request must carry the episode's ``token``. Only the
    event loop uses the attributes that begin with an underscore, except the queue.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(16)
        self._waiting: queue.SimpleQueue[PendingRequest | None] = queue.SimpleQueue()
        self._open: set[PendingRequest] = set()
        self._ended = False
        self._runner: asyncio.Task[web.AppRunner] | None = None

    def next(self) -> PendingRequest | None:
        """Waits for and returns the next request that was not withdrawn; None if the episode has ended."""
        while (pending := self._waiting.get()) is not None and pending.reply.cancelled():
            pass
        return pending

    def serve(self, listener: socket.socket) -> None:
        workers.start(self._serve(listener))

    def end(self) -> None:
        """Refuses requests that wait and that still come. Returns before this is done, as ``serve`` and ``close`` do."""
        workers.soon(self._end)

    def close(self) -> None:
        workers.start(self._close())

    async def reply_to(self, pending: PendingRequest) -> Message:
        if self._ended:
            raise web.HTTPGone(text="the episode is over")
        self._open.add(pending)
        self._waiting.put(pending)
        try:
            return await asyncio.wrap_future(pending.reply)
        except asyncio.CancelledError:
            if pending.reply.cancelled():
                raise web.HTTPGone(text="the episode is over") from None
            raise
        finally:
            self._open.discard(pending)

    async def _serve(self, listener: socket.socket) -> None:
        self._runner = asyncio.create_task(_runner(listener, self))

    def _end(self) -> None:
        self._ended = True
        for pending in self._open:
            pending.reply.cancel()
        self._waiting.put(None)

    async def _close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await (await runner).cleanup()


async def _runner(listener: socket.socket, requests: AgentRequestQueue) -> web.AppRunner:
    app = web.Application(client_max_size=BODY, middlewares=[_refusals])
    app[_QUEUE] = requests
    app.router.add_post(CHAT, _chat)
    # A program that disconnects withdraws its request. aiohttp's messages about requests stay out of the run's log.
    runner = web.AppRunner(app, access_log=None, logger=_SILENT, handler_cancellation=True, shutdown_timeout=0)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    return runner


_QUEUE = web.AppKey("requests", AgentRequestQueue)
_SILENT = logging.getLogger("turnwise.gateway")
_SILENT.disabled = True


@web.middleware
async def _refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(token.encode(errors="replace"), request.app[_QUEUE].token.encode()):
        return _refused(401, "the token does not belong to this episode; send the value of OPENAI_API_KEY")
    try:
        answer: web.StreamResponse = await handler(request)
        return answer
    except (TypeError, AttributeError, LookupError, ValueError) as error:  # perhaps a field has another type
        return _refused(400, f"the request cannot be used: {type(error).__name__}: {error}"[:500])
    except web.HTTPException as error:
        return _refused(error.status, error.text or error.reason)


def _refused(status: int, message: str) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return web.json_response({"error": error}, status=status)


async def _chat(request: web.Request) -> web.StreamResponse:
    pending = PendingRequest(read_agent_request(parse_json(await request.read())))
    body = agent_completion(await request.app[_QUEUE].reply_to(pending), pending.conversation.stream)
    if not pending.conversation.stream:
        return web.json_response(body)
    events = f"data: {json.dumps(body)}\n\ndata: [DONE]\n\n"
    return web.Response(text=events, content_type="text/event-stream", headers={"Cache-Control": "no-cache"})


# -- programs, their tasks and episodes --------------------------------------------------------------------------------


TASK = "task.json"  # the file in which an agent program finds its task


Files = Annotated[Mapping[Annotated[str, AfterValidator(check_path)], str], Field(default_factory=dict)]


class Row(data_files.TaskRow):
    """One line of the tasks file. ``task.json`` passes on further keys to the agent program."""

    model_config = ConfigDict(extra="allow")
    files: Files  # path -> text of a file in the program's folder
    hidden: Files  # the same for files that are added before scoring


PORT = 8000  # the gateway's port inside the sandbox, where no other program listens


def with_variables(command: str, variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()) + command


class AgentProgram:
    """A running agent program. ``OPENAI_BASE_URL`` has the gateway's address, ``OPENAI_API_KEY`` the episode's token."""

    def __init__(self, sandbox: Bubblewrap, command: str, tree: Tree, variables: Mapping[str, str]) -> None:
        self.requests = AgentRequestQueue()
        self.result: Future[tuple[CallResult, Tree]] = Future()
        self._kill: Future[Callable[[], None]] = Future()  # known once the program runs
        shown = {"OPENAI_BASE_URL": f"http://{HOST}:{PORT}/v1", "OPENAI_API_KEY": self.requests.token, **variables}
        script = with_variables(command, shown)
        threading.Thread(target=self._run, args=(sandbox, script, tree), name="agent", daemon=True).start()

    def close(self) -> None:
        self._kill.add_done_callback(lambda kill: kill.result()())  # at once, or as soon as the program runs

    def _run(self, sandbox: Bubblewrap, script: str, tree: Tree) -> None:
        try:
            self.result.set_result(sandbox.shell(script, tree, ServerPort(PORT, self._opened)))
        except BaseException as error:  # the error is stored and raised where the result is read
            self.result.set_exception(error)
        finally:
            self.requests.end()
            self.requests.close()

    def _opened(self, listener: socket.socket, kill: Callable[[], None]) -> None:
        self.requests.serve(listener)
        self._kill.set_result(kill)


SECONDS = 120  # time limit for computing a score, in seconds
_SHOWN = 600  # maximum number of characters of a program's output in an error message


class AgentEpisode:
    """A running episode of an agent program, which starts now."""

    def __init__(self, env: AgentEnv, task: Task) -> None:
        self.env, self.form, self.place = env, env.format, f"env=agent, task {task.id}"
        self.sandbox = env.box.open()
        self.hidden = folder_tree(task.data.get("hidden") or {})
        shown = {key: value for key, value in task.data.items() if key not in ("files", "hidden")}
        files = {
            **folder_tree(task.data.get("files") or {}),
            TASK: File(json.dumps(shown, ensure_ascii=False).encode()),
        }
        self.program = AgentProgram(self.sandbox, env.command, laid_over(env.code, files), env.variables)
        self.number = 0  # number of replies so far
        self._asked: PendingRequest | None = None

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        return self._asked.conversation.tools if self._asked else ()

    def opening(self) -> list[Message]:
        if self._asked is None:
            self._asked = self.program.requests.next()
            if self._asked is None:
                raise EnvironmentFault(
                    f"{self.place}: the agent program ended ({self._output()}) before it requested a reply from the "
                    "policy; it must send its requests to OPENAI_BASE_URL"
                )
        return list(self._asked.conversation.messages)

    def act(self, text: str) -> Step:
        """Answers the waiting request and waits for the next one. The step has what that adds to the conversation, or
        all of its messages if it does not continue it. If the program has ended, the reward is the score.
        """
        self.opening()
        pending = self._asked
        assert pending is not None  # the session only steps while a request waits
        before = pending.conversation
        reply = agent_reply_message(text, before.tools, self.form, self.number)
        self.number += 1
        taken = pending.answer(reply)
        following = self.program.requests.next()
        while not taken and following is not None and following.conversation == before:
            # The agent program disconnected and sent its request again. The repeated request gets this reply.
            taken = following.answer(reply)
            following = self.program.requests.next()
        if not taken and following is None:
            raise EnvironmentFault(
                f"{self.place}: the agent program ended ({self._output()}) while the policy's reply was being sampled"
            )
        self._asked = following
        return self._scored() if following is None else _step(before, reply, following.conversation)

    def close(self) -> None:
        self.program.close()

    def _output(self) -> str:
        with faults():
            outcome, _ = self.program.result.result()
        how = f"stopped by the {outcome.stopped} limit" if outcome.stopped else f"exit status {outcome.status}"
        return f"{how}, output {outcome.output.strip()[-_SHOWN:]!r}"

    def _scored(self) -> Step:
        """Computes the reward in the folder that the program left, in which the files of the code are restored."""
        score = shlex.quote(with_variables(self.env.score, self.env.variables))
        with faults():
            outcome, tree = self.program.result.result()
            folder = laid_over(tree, laid_over(self.env.code, self.hidden))
            scored, _ = self.sandbox.shell(f"timeout -k 1 {SECONDS} bash -c {score}", folder)
        info: dict[str, Any] = {"status": outcome.status, "stopped": outcome.stopped}
        reward = _number(scored.output) if scored.ok else None
        if reward is None and outcome.ok:
            raise InputError(
                f"env.score: {self.place}: the command {self.env.score!r} must exit with status 0 and print a number as "
                f"its last line, but it gave exit status {scored.status} and output {scored.output.strip()[-_SHOWN:]!r}. "
                f"The agent program had ended with {self._output()}. Correct env.score, or the program if it does not "
                "write what is scored"
            )
        if reward is None:  # the agent program failed before it wrote the files that are scored
            info["unscored"], reward = True, 0.0
        return Step("", reward, True, reward >= self.env.threshold, info)


def _step(before: Conversation, reply: Message, after: Conversation) -> Step:
    added = continuation_of_request(before, reply, after)
    text = "\n".join(str(message["content"]) for message in (after.messages if added is None else added))
    if added is None:
        return Step(text, conversation=after.messages, info={"anew": True})
    return Step(text, messages=added)


def _number(output: str) -> float | None:
    lines = output.strip().splitlines()
    try:
        value = float(lines[-1])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None


class AgentEnv(ReplayedEnv):
    """An environment in which the user's agent program asks the policy for replies (docs/agents.md,
    conf/env/agent.yaml).
    """

    name = "agent"

    def __init__(
        self,
        command: str,
        tasks_file: str,
        score: str,
        code: str | None = None,
        threshold: float = 1.0,
        horizon: PositiveInt = 30,
        format: Format = "hermes",  # noqa: A002 - the configuration uses this name
        variables: Mapping[str, str] | None = None,
        together: PositiveInt = 32,
        box: Box | None = None,
    ) -> None:
        self.command, self.score, self.threshold = command, score, threshold
        self.horizon, self.format, self.together = horizon, format, together
        self.variables, self.box = dict(variables or {}), box or Box()
        self._rows = data_files.read_tasks(tasks_file, "env.tasks_file", Row)
        self.code: Tree = read_folder(Path(code), "env.code") if code else {}
        self._first: dict[str, Opening] = {}  # task id -> messages and tools of the program's first request

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        check_tasks(split, count)
        rows = [(row, record) for row, record in self._rows if row.split == split]
        tasks = [Task(self.name, f"{split}/{row.id}", split, dict(record)) for row, record in rows]
        return first_tasks(tasks, count, f"split {split} of env.tasks_file", f"{split} {seed}")

    def session(self, task: Task) -> ReplayedSession:
        """If the task's first request is known, the program starts only when the session takes an action."""
        session = ReplayedSession(task, partial(self.open_episode, task), self.horizon, self._first.get(task.id))
        self._first.setdefault(task.id, (session.opening(), session.tools))
        session.form = self.format
        return session

    def open_episode(self, task: Task) -> AgentEpisode:
        return AgentEpisode(self, task)

    def ready(self) -> None:
        """Starts the agent program twice on one task and checks that both first requests are equal."""
        super().ready()
        self._first.clear()
        super().ready()

    def accepts(self, session: ReplayedSession, action: str, expert: str) -> bool:
        """Accepts the calls of the expert's reply in their order or, if it has none, its text."""
        calls = read_calls(expert, self.format, session.tools)
        return read_calls(action, self.format, session.tools) == calls if calls else same_text(action, expert)
