"""Environments whose actions are tool calls: text formats, chat messages, and the base classes of sessions and environments."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge

from turnwise.data.tool_schema import misfits, name_of, parameters_of, signature
from turnwise.data.toolcalls import (
    CLOSE,
    OPEN,
    Format,
    ToolCallError,
    chat_calls,
    hermes,
    parsed,
    split_thinking,
    write_calls,
)
from turnwise.env import CountedSession, Level, Quality, Session, Step, tools_of
from turnwise.types import Message, Task, ToolCall, Trajectory
from turnwise_worlds.scripted_experts import S, ScriptedEnv, trajectory_of

Style = Literal["short", "hermes", "boxed"]
_SHOWN = 160  # maximum length of an error message that the policy sees, in characters
ANSWERED = "The answer was noted."
REFUSED = "Error: "  # how the observation after a reply without a valid call begins
_DIGITS = 6  # maximum number of digits of a number in the short format


@dataclass(frozen=True, slots=True)
class Short:
    """The short format, such as ``edit bag.py 3 return y``: the tool's name, then its arguments. The last one takes the
    rest of the text. ``bare``: the only tool's name is left out.
    """

    tools: Sequence[Mapping[str, Any]]
    bare: bool = False

    def explain(self) -> str:
        return "Tools: " + ", ".join(f"{name_of(each)} ({', '.join(parameters_of(each))})" for each in self.tools)

    def read(self, text: str) -> ToolCall:
        rest = split_thinking(text)[1]
        name = name_of(self.tools[0])
        if not self.bare:
            name, _, rest = rest.partition(" ")
        chosen = next((each for each in self.tools if name_of(each) == name), None)
        if chosen is None:
            *names, last = map(name_of, self.tools)
            raise ToolCallError(f"use {', '.join(names)} or {last}" if names else f"use {last}")
        return ToolCall(name, _arguments(name, parameters_of(chosen), rest.strip()))

    def write(self, call: ToolCall) -> str:
        return " ".join(map(str, (*[call.name] * (not self.bare), *call.arguments.values())))


def _arguments(name: str, parameters: Mapping[str, Mapping[str, Any]], text: str) -> dict[str, Any]:
    if not parameters and text:
        raise ToolCallError(f"{name} takes no argument")
    arguments: dict[str, Any] = {}
    for place, (key, schema) in enumerate(parameters.items(), start=1):
        word, _, text = (text, "", "") if place == len(parameters) else text.partition(" ")
        number = schema["type"] == "integer"
        if (not word and place == 1) or (number and not (word.isascii() and word.isdigit() and len(word) <= _DIGITS)):
            raise ToolCallError(f"{name} takes {', '.join(parameters)}: no {key} in it")
        arguments[key] = int(word) if number else word
    return arguments


@dataclass(frozen=True)
class Hermes:
    """The Hermes format of chat models: JSON between ``<tool_call>`` tags. Text around the call is ignored."""

    tools: Sequence[Mapping[str, Any]]

    def explain(self) -> str:
        listed = "\n".join(map(json.dumps, self.tools))
        form = f'{OPEN}\n{{"name": "...", "arguments": {{...}}}}\n{CLOSE}'
        return (
            f"You can call these tools, one call in each reply:\n<tools>\n{listed}\n</tools>\nWrite a call as\n{form}"
        )

    def read(self, text: str) -> ToolCall:
        try:
            calls = hermes(text).calls
        except ToolCallError as error:
            raise ToolCallError(f"the call cannot be read: {error}") from None
        if len(calls) != 1:
            raise ToolCallError(f"one call a turn, got {len(calls)}")
        (call,) = calls
        if problems := misfits(call, self.tools):
            raise ToolCallError("; ".join(problems))
        return call

    def write(self, call: ToolCall) -> str:
        return write_calls([call], "hermes")


def boxed_answer(solution: str) -> str | None:
    r"""Returns the content of the last ``\boxed{}``; None if there is none, it is empty, or its braces do not match."""
    start = solution.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for at in range(begin, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[at], 0)
        if depth == 0:
            return solution[begin:at].strip() or None
    return None


class Boxed(Hermes):
    r"""The Hermes format in which the final answer is text (TRACE, arXiv:2606.11119, App. F): a reply without a call is
    the answer, by its last ``\boxed{}`` or as a whole. It stands for the tool ``answer``, which is not shown.
    """

    def explain(self) -> str:
        others = Hermes([tool for tool in self.tools if name_of(tool) != "answer"])
        ending = "The final answer is text: a reply without a call, with the answer alone in \\boxed{}"
        examples = "\\boxed{yes}, \\boxed{1985} or \\boxed{Alan Turing}"
        return f"{others.explain() if others.tools else ''}\n{ending}, such as {examples}. It ends the episode.".strip()

    def read(self, text: str) -> ToolCall:
        reply = split_thinking(text)[1]
        if OPEN in reply:
            return super().read(text)
        return ToolCall("answer", {"text": boxed_answer(reply) or reply})

    def write(self, call: ToolCall) -> str:
        return f"\\boxed{{{call.arguments['text']}}}" if call.name == "answer" else super().write(call)


Calls = Short | Hermes


def calls_of(style: str, tools: Sequence[Mapping[str, Any]], bare: bool = False) -> Calls:
    if style == "boxed" and "answer" not in map(name_of, tools):
        raise ValueError("calls: boxed is for environments whose episodes end with an answer; choose short or hermes")
    if style == "short":
        return Short(tools, bare)
    return Hermes(tools) if style == "hermes" else Boxed(tools)


def read_call(calls: Calls, text: str) -> ToolCall | None:
    try:
        return calls.read(text)
    except ToolCallError:
        return None


def refusal(error: Exception) -> str:
    """Returns what the policy reads after a reply without a valid call: the error message, cut to 160 characters."""
    return f"{REFUSED}{str(error)[:_SHOWN]}."


HOW = "Call a function as name(parameter=value), several as [f(a=1), g()]."

Tools = tuple[Mapping[str, Any], ...]


def templated(form: Format) -> bool:
    return form != "bfcl_python"


def opening_messages(
    system: str, tools: Sequence[Mapping[str, Any]], form: Format, user: str, how: str = HOW
) -> list[Message]:
    """Returns a system message, left out if it is empty, and a user message. If the chat template does not write the
    tools, the system message lists them, with ``how`` to call them.
    """
    listed = ["\n".join(map(signature, tools)), how] if tools and not templated(form) else []
    text = "\n\n".join(filter(None, [system, *listed]))
    messages: list[Message] = [{"role": "system", "content": text}] if text else []
    return [*messages, {"role": "user", "content": user}]


def call_message(
    calls: Sequence[ToolCall], form: Format, tools: Sequence[Mapping[str, Any]] = (), thought: str = ""
) -> Message:
    """Returns an assistant message with an expert's calls. They are text in ``bfcl_python``, if one does not fit
    ``tools`` (trajectory files may not hold it in ``tool_calls``), and after a ``thought``, because some chat templates
    drop the text of a message that has ``tool_calls``.
    """
    if thought or not templated(form) or any(misfits(call, tools) for call in calls):
        return {"role": "assistant", "content": thought + write_calls(calls, form)}
    return {"role": "assistant", "content": "", "tool_calls": chat_calls(calls)}


def answer_messages(results: Sequence[str], form: Format) -> tuple[Message, ...]:
    """Returns one ``tool`` message for each answer. For ``bfcl_python`` a user message holds the answers instead."""
    return tuple({"role": "tool", "content": result} for result in results) if templated(form) else ()


def played_trajectory(
    session: Session, replies: Iterable[tuple[Sequence[ToolCall], str]], form: Format, quality: Quality, seed: int
) -> Trajectory:
    """Plays an expert's pairs (tool calls, text). The text is the thought before the calls, or without calls the reply."""
    messages = list(session.opening())
    for calls, text in replies:
        if session.done:
            break
        messages.append(
            call_message(calls, form, tools_of(session), text) if calls else {"role": "assistant", "content": text}
        )
        step = session.step(text + write_calls(calls, form) if calls else text)
        if step.messages:
            messages += step.messages
        elif not step.done:
            messages.append({"role": "user", "content": step.observation})
    return trajectory_of(session, messages, quality, seed)


def read_calls(text: str, form: Format, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[ToolCall, ...] | None:
    reply = parsed(text, form, tools)
    return None if reply is None else reply.calls


MAX_ARGUMENT = 20_000  # maximum length of a text argument, in characters


class ToolSession(CountedSession):
    """Base class of episodes with tool calls. An explanation of the tools is appended to the text ``system``."""

    def __init__(self, task: Task, calls: Calls, horizon: int, system: str, user: str) -> None:
        self.task, self.calls, self.horizon = task, calls, horizon
        self._opening: tuple[Message, ...] = (
            {"role": "system", "content": "\n".join(filter(None, [system, calls.explain()]))},
            {"role": "user", "content": user},
        )

    @abstractmethod
    def act(self, call: ToolCall) -> Step:
        """Answers one tool call."""

    def opening(self) -> list[Message]:
        return [dict(message) for message in self._opening]

    def call(self, action: str) -> ToolCall:
        return self.calls.read(action)

    def write(self, name: str, *arguments: Any) -> str:
        """Returns a call with these values, in the order of the tool's parameters, as the policy would write it."""
        (keys,) = (parameters_of(tool) for tool in self.calls.tools if name_of(tool) == name)
        return self.calls.write(ToolCall(name, dict(zip(keys, arguments, strict=True))))

    def refused(self, error: ToolCallError) -> str:
        return refusal(error)

    def answer(self, action: str) -> Step:
        try:
            answer, admissible = self.act(self.call(action)), True
        except ToolCallError as error:
            answer, admissible = Step(self.refused(error)), False
        return replace(answer, info={"admissible": admissible, **answer.info})


class TextSession(ToolSession):
    """An episode in which each tool takes one text argument."""

    @abstractmethod
    def use(self, name: str, argument: str) -> Step:
        """Returns the answer to a call of the tool ``name`` with a non-empty argument."""

    def act(self, call: ToolCall) -> Step:
        return self.use(call.name, *call.arguments.values())

    def call(self, action: str) -> ToolCall:
        call = super().call(action)
        ((key, value),) = call.arguments.items()
        if not (argument := str(value).strip()):
            raise ToolCallError("the argument is empty")
        if len(argument) > MAX_ARGUMENT:
            raise ToolCallError(f"the argument has {len(argument)} characters, more than {MAX_ARGUMENT}")
        return ToolCall(call.name, {key: argument})

    def read(self, action: str) -> tuple[str, str] | None:
        """Returns the called tool and its argument; None if the action is not a call."""
        try:
            call = self.call(action)
        except ToolCallError:
            return None
        return call.name, *call.arguments.values()


Shown = Annotated[int, Ge(20)]  # maximum length of an observation in characters


class ToolEnv(ScriptedEnv[S]):
    """Base class of environments in which an action is a tool call. ``calls`` None means short at the tiny level and
    hermes at the full level. For ``bare`` see :class:`Short`. A subclass has the class of its sessions, which takes a task
    and the environment.
    """

    session: type[S]

    def __init__(
        self, level: Level, horizon: int, calls: Style | None, tools: Sequence[Mapping[str, Any]], bare: bool = False
    ) -> None:
        self.level: Level = level
        self.horizon = horizon
        self.calls = calls or ("short" if level == "tiny" else "hermes")
        self._calls = calls_of(self.calls, tools, bare)

    def begin(self, task: Task) -> S:
        return self.session(task, self)  # type: ignore[call-arg]
