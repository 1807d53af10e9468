"""Splits a dialogue of K assistant turns into K single-step instances (AWPO, arXiv:2512.19126, section 4.1).

This module holds the messages of each step, which verifiers and judges read. The tokens of the same step are a
:class:`turnwise.types.State` (``states.expert_turns``) with the same id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.data.thinking import REASONING
from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls.reply import ToolCallError, checked_call, split_thinking
from turnwise.types import Message, ToolCall, Trajectory


@dataclass(frozen=True, slots=True)
class TurnInContext:
    """One assistant turn of a demonstrated dialogue with all messages before it."""

    id: str  # "{trajectory}#t{turn}", the same as the id of the turn's State
    prompt: tuple[Message, ...]  # the full preceding context
    rationale: str | None  # the demonstrated reasoning, if there is any
    content: str  # the demonstrated text without reasoning and structured calls
    calls: tuple[ToolCall, ...]  # the demonstrated calls in ``tool_calls``
    tools: tuple[Mapping[str, Any], ...] = ()


def steps_of(trajectory: Trajectory) -> list[TurnInContext]:
    """Returns one step for each assistant turn of a trajectory, in order. A pivot has only one step, its last assistant
    turn.

    Reasoning is read from a message's key ``reasoning_content``, ``reasoning`` or ``thinking``, otherwise from the
    thinking block at the start of its content. Tool calls that are only in the text of the content are not parsed.

    Raises:
        ValueError: a call is not valid; the message names the step. Trajectories read from files hold no such calls.
    """
    steps: list[TurnInContext] = []
    for at in trajectory.acts:
        message = trajectory.messages[at]
        name = f"{trajectory.id}#t{len(steps)}"
        rationale, content = _reasoning(message)
        calls = tuple(_call(call, name) for call in message.get("tool_calls") or ())
        steps.append(TurnInContext(name, trajectory.messages[:at], rationale, content, calls, trajectory.tools))
    return steps


def _reasoning(message: Message) -> tuple[str | None, str]:
    content = str(message.get("content") or "")
    for key in REASONING:
        if isinstance(message.get(key), str) and message[key].strip():
            return message[key].strip(), content
    try:
        thinking, content = split_thinking(content)
    except ToolCallError:  # demonstrations may be longer than the limit, or hold only thinking
        return None, content
    return thinking or None, content


def _call(call: Mapping[str, Any], step: str) -> ToolCall:
    try:
        return checked_call(function_of(call).get("name"), arguments_of(call))
    except (ValueError, TypeError) as error:
        raise ValueError(f"step {step!r}: {error}") from error
