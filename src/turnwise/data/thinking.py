"""Finds and removes the reasoning (thinking) in assistant messages and in replies."""

from __future__ import annotations

from typing import Literal

from turnwise.data.toolcalls.parsing import MAX_CHARS, ToolCallError
from turnwise.types import Message

REASONING = ("reasoning_content", "reasoning", "thinking")  # keys of chat messages that may hold reasoning

OPEN_THINKING, CLOSE_THINKING = "<think>", "</think>"

Thinking = Literal["keep", "drop"]
"""Says whether the history of a demonstrated reply keeps the reasoning of earlier turns or drops it."""


def without_thinking(message: Message) -> Message:
    """Returns an assistant message without its reasoning. Other messages are returned unchanged.

    The reasoning may be under a key of ``REASONING`` or at the start of the content, up to the last ``</think>``.
    """
    if message["role"] != "assistant":
        return message
    kept = {key: value for key, value in message.items() if key not in REASONING}
    return {**kept, "content": str(kept.get("content") or "").rpartition("</think>")[2].lstrip()}


def split_thinking(text: str) -> tuple[str, str]:
    """Returns the thinking of a reply and the text after it, both without outer whitespace.

    Thinking is all text up to the last ``</think>``, as in :meth:`turnwise.data.chat_tokens.ChatTokens.decode`.

    Raises:
        ToolCallError: the text has more than ``MAX_CHARS`` characters, or it begins with thinking that is never closed.
    """
    if len(text) > MAX_CHARS:
        raise ToolCallError(f"the reply has {len(text)} characters, more than {MAX_CHARS}")
    thinking, _, rest = text.rpartition(CLOSE_THINKING)
    rest = rest.strip()
    if rest.startswith(OPEN_THINKING):
        raise ToolCallError(f"{OPEN_THINKING} is never closed")
    return thinking.strip().removeprefix(OPEN_THINKING).strip(), rest
