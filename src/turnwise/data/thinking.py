"""Finds and removes the reasoning of assistant messages."""

from __future__ import annotations

from typing import Literal

from turnwise.types import Message

REASONING = ("reasoning_content", "reasoning", "thinking")  # keys of chat messages that may hold reasoning

Thinking = Literal["keep", "drop"]
"""Says whether the history of a demonstrated reply keeps the reasoning of earlier turns or drops it."""


def without_thinking(message: Message) -> Message:
    """Returns an assistant message without its reasoning. The reasoning may be under a key of ``REASONING`` or at the
    start of the content, up to ``</think>``. Other messages are returned unchanged.
    """
    if message["role"] != "assistant":
        return message
    kept = {key: value for key, value in message.items() if key not in REASONING}
    return {**kept, "content": str(kept.get("content") or "").rpartition("</think>")[2].lstrip()}
