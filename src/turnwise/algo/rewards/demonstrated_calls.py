"""Reads the demonstrated tool calls with which a reward compares an action."""

from __future__ import annotations

from turnwise.data.toolcalls.formats import PARSERS, Format, parser_of
from turnwise.data.toolcalls.parsing import ToolCallError
from turnwise.errors import InputError
from turnwise.types import State, ToolCall


def check_form(form: str | None) -> None:
    """Raises ValueError if ``form`` is neither a format of tool calls nor None."""
    if form is not None and form not in PARSERS:
        raise ValueError(f"format must be one of {', '.join(PARSERS)}, got {form!r}")


def demonstrated_calls(state: State, form: Format | None) -> tuple[ToolCall, ...]:
    """Returns the tool calls of the state's demonstrated action, which is written in the format ``form``.

    Raises:
        ValueError: the state has no demonstrated action, or ``form`` is None.
        InputError: the demonstrated action is not in the format ``form``.
    """
    if state.expert is None:
        raise ValueError(f"state {state.id!r} has no demonstrated calls to compare with; set states=expert_turns")
    try:
        return parser_of(form)(state.expert).calls
    except ToolCallError as error:
        raise InputError(
            f"{state.id}: the demonstrated action is not in the format {form} ({error}): set reward.format to the "
            "format of the demonstrated calls, or correct the demonstrations"
        ) from error
