"""Splits a dialogue into its assistant turns, each with the messages before it (AWPO, arXiv:2512.19126, section 4.1).

An instance, also called a step, is one assistant turn with the messages before it. Verifiers and judges read these
messages. The tokens of a turn are in the :class:`turnwise.types.State` with the turn's id (``states.expert_turns``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.data.tool_schema import arguments_of, function_of
from turnwise.data.toolcalls import checked_call, reasoning_of_reply
from turnwise.types import Message, ToolCall, Trajectory


@dataclass(frozen=True, slots=True)
class TurnInContext:
    """One assistant turn of a demonstrated dialogue with all messages before it."""

    id: str  # "{trajectory}#t{turn}", the same as the id of the turn's State
    prompt: tuple[Message, ...]  # all messages before this turn
    rationale: str | None  # the demonstrated reasoning; None if there is none
    content: str  # the demonstrated text, without the reasoning and without the calls in ``tool_calls``
    calls: tuple[ToolCall, ...]  # the demonstrated calls in ``tool_calls``
    tools: tuple[Mapping[str, Any], ...] = ()


def steps_of(trajectory: Trajectory) -> list[TurnInContext]:
    """Returns one step for each assistant turn of a trajectory, in order. A pivot has only one step, its last turn.
    Tool calls that are written in the content are not parsed. A ValueError if a call is not valid; the calls of
    trajectories that were read from files have been checked before.
    """
    steps: list[TurnInContext] = []
    for at in trajectory.acts:
        message = trajectory.messages[at]
        name = f"{trajectory.id}#t{len(steps)}"
        rationale, content = reasoning_of_reply(message)
        try:
            calls = tuple(
                checked_call(function_of(call).get("name"), arguments_of(call))
                for call in message.get("tool_calls") or ()
            )
        except (ValueError, TypeError) as error:
            raise ValueError(f"step {name!r}: {error}") from error
        steps.append(TurnInContext(name, trajectory.messages[:at], rationale, content, calls, trajectory.tools))
    return steps
