"""Checks that demonstrated replies can be parsed again from the text that the chat template renders for them."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.data.dialect import Dialect
from turnwise.data.steps import steps_of
from turnwise.data.toolcalls.formats import PARSERS
from turnwise.data.toolcalls.match import equivalent
from turnwise.data.toolcalls.parsing import ToolCallError
from turnwise.types import Trajectory


def check_read_back(dialect: Dialect, trajectory: Trajectory, actions: Sequence[str]) -> str:
    """Checks that the rendered replies of a trajectory can be read back, and returns a message about the first failure.

    Parsing a rendered reply must give the tool calls of the demonstrated reply. If the demonstrated reply has no calls,
    the rendered reply must contain its text. The result is an empty text if no reply fails.

    Args:
        dialect: its ``format`` is the format in which the tool calls are parsed.
        trajectory: the trajectory as it was read from the file.
        actions: the rendered replies of the trajectory, in order.
    """
    for step, action in zip(steps_of(trajectory), actions, strict=True):
        if not action.strip():
            return f"the chat template renders the demonstrated reply {step.id} as an empty text"
        if step.calls:
            try:
                made = PARSERS[dialect.format](action, trajectory.tools).calls
            except ToolCallError as error:
                return (
                    f"{step.id}: the tool calls that the chat template renders cannot be read in the format "
                    f"{dialect.format} ({error})"
                )
            if not equivalent(made, step.calls):
                return (
                    f"{step.id}: the tool calls that the chat template renders, read in the format {dialect.format}, "
                    "differ from the calls in tool_calls"
                )
        elif step.content.strip() and step.content.strip() not in action:
            return f"{step.id}: the reply that the chat template renders does not contain the text of the message"
    return ""


def drops_text(trajectory: Trajectory, actions: Sequence[str]) -> bool:
    """Returns whether the chat template drops the text of a reply that has both text and calls.

    ``actions`` are the rendered replies of the trajectory, in order.
    """
    return any(
        step.calls and step.content.strip() not in action
        for step, action in zip(steps_of(trajectory), actions, strict=True)
    )


def drops_reasoning(trajectory: Trajectory, replies: Sequence[str]) -> bool:
    """Returns whether the chat template drops the reasoning of a reply.

    ``replies`` are the rendered replies of the trajectory with their reasoning, in order.
    """
    return any(
        step.rationale is not None and step.rationale not in reply
        for step, reply in zip(steps_of(trajectory), replies, strict=True)
    )
