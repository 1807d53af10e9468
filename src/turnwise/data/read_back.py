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
    """Checks that parsing each rendered reply gives the tool calls of the demonstrated reply. If the demonstrated reply
    has no calls, the rendered reply must contain its text. Returns a message about the first reply that fails the
    check, or an empty text if none fails.

    Args:
        dialect: what the chat template leaves out, and the format in which the tool calls are parsed.
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
    """Returns whether the chat template drops the text of a reply that has both text and calls, and renders only the
    calls. ``actions`` are the rendered replies of the trajectory, in order.
    """
    return any(
        step.calls and step.content.strip() not in action
        for step, action in zip(steps_of(trajectory), actions, strict=True)
    )
