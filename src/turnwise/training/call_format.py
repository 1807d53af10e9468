"""Determines the format of tool calls that the reward and the judge parse, and the dialect of the file's dialogues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from turnwise.config.settings import DataSettings
from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.dialect import Dialect, calls_read, dialect_of
from turnwise.data.toolcalls import PARSERS, Format
from turnwise.envs.environment import environments_of
from turnwise.errors import InputError
from turnwise.types import State

FALLBACK: Format = "hermes"  # the format of most chat templates with tools
SAMPLE = 32  # greatest number of demonstrated actions that are checked before a run begins


def call_format(given: Format | None, environment: Any, from_file: bool) -> Format:
    """Returns the format of the run's tool calls, as far as it is known before the policy is loaded.

    Without ``given``, the format is the attribute ``format`` or ``calls`` of the environment, in which its experts
    write. If the environment names no format, or the demonstrations come from a file, the format is ``hermes``. For a
    file, ``training.build_parts`` later replaces ``hermes`` by the format that the policy's chat template writes.

    Args:
        given: the format that the user configured (``reward.format``), or None.
        environment: the environment, or a mixture of environments.
        from_file: whether the demonstrations are dialogues from a file (``data.file``).

    Raises:
        InputError: the environments of a mixture write calls in different formats.
    """
    if given is not None:
        return given
    own = {} if from_file else _own_formats(environment)
    if len(set(own.values())) > 1:
        told = ", ".join(f"{name} {form}" for name, form in sorted(own.items()))
        raise InputError(
            f"reward.format: the environments write calls in different formats ({told}), but a reward reads only one; "
            "keep only environments of one format, or choose reward=functional, with which each environment compares "
            "the actions of its own tasks"
        )
    return next(iter(own.values()), FALLBACK)


def _own_formats(environment: Any) -> dict[str, Format]:
    """Returns name of an environment -> format of its tool calls. Environments without calls are left out."""
    found = {
        name: getattr(world, "format", None) or getattr(world, "calls", None)
        for name, world in environments_of(environment).items()
    }
    return {name: form for name, form in found.items() if isinstance(form, str) and form in PARSERS}  # type: ignore[misc]


def in_format(reward: Any, form: Format) -> Any:
    """Returns a copy of ``reward`` with its format set to ``form``. A reward that has a format already, or that parses
    no calls, is returned unchanged.
    """
    return replace(reward, format=form) if getattr(reward, "format", form) is None else reward


def check_readable(reward: Any, candidates: Sequence[State]) -> None:
    """Checks that at least one of up to ``SAMPLE`` demonstrated actions contains a tool call in the reward's format.

    Raises:
        InputError: none of these actions contains a call in the reward's format. If some of them contain calls in
            another format, the message names the other format.
    """
    form = getattr(reward, "format", None)
    if form is None or not len(candidates):
        return
    count = min(SAMPLE, len(candidates))
    experts = [candidates[i * len(candidates) // count].expert or "" for i in range(count)]
    if calls_read(form, experts):
        return
    better = [name for name in PARSERS if calls_read(name, experts)]
    remedy = (
        f"set reward.format={better[0]}, which reads these actions"
        if better
        else "choose an environment whose actions are tool calls (env=apibank, bfcl or tau2), or a file of such dialogues "
        "(data.file); reward=functional and reward=exact need no calls"
    )
    raise InputError(
        f"reward.format={form}: none of {count} demonstrated actions that were checked contains a tool call in this "
        f"format (the first action is {experts[0][:80]!r}), so all replies would earn the same reward; {remedy}"
    )


def dialect_for(data: DataSettings, source: str, chat: ChatTokens, form: Format | None) -> Dialect | None:
    """Returns the way in which the chat template renders the dialogues of a run's file, or None if no file is read.

    Args:
        source: ``expert`` if the run's states are turns of expert trajectories.
        form: the configured format of tool calls (``reward.format`` or else ``data.format``), or None.
    """
    if data.file is None or source != "expert":
        return None
    return dialect_of(chat, data.tools_as_text is True, form)
