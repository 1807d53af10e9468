"""The reasoning of an assistant message: the keys that may hold it, and messages without it."""

from __future__ import annotations

from typing import Literal

from turnwise.types import Message

REASONING = ("reasoning_content", "reasoning", "thinking")  # keys of chat messages that may hold reasoning

Thinking = Literal["keep", "drop"]
"""How the reasoning of earlier turns is treated in the history of a demonstrated reply."""


def without_thinking(message: Message) -> Message:
    """Returns an assistant message without its reasoning, under a key or in its content, and any other message as it is."""
    if message["role"] != "assistant":
        return message
    kept = {key: value for key, value in message.items() if key not in REASONING}
    return {**kept, "content": str(kept.get("content") or "").rpartition("</think>")[2].lstrip()}
