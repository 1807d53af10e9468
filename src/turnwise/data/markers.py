"""Changes text that the policy did not write, so that a tokenizer reads no special tokens in it.

A tokenizer reads ``<|im_end|>`` in any text as the token itself. A web page, the output of a command or an echoed query
with this string would otherwise end its turn and could begin another one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HALF = re.compile("[\ud800-\udfff]")  # half a surrogate pair, which no tokenizer accepts


def disarming(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Callable[[Message], Message], Callable[[Sequence[Any]], list[Any]]]:
    """Returns two functions that make messages and tools safe to render.

    In text that the policy did not write, each special token's string gets a space after its first character, for
    example ``< |im_end|>``. This also applies to all texts in the definitions of tools. Added tokens that are not
    special (``<tool_call>`` in many vocabularies) are ordinary text and end no turn. Assistant messages are unchanged.
    """
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    # Only the first character is consumed, so that overlapping strings of tokens are all found.
    parts = [f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in sorted(special) if len(text) > 1]
    marker = re.compile("|".join(parts) or r"(?!)")

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return marker.sub(lambda found: f"{found[0]} ", _HALF.sub("\ufffd", value))
        if isinstance(value, Mapping):
            return {plain(key): plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list | tuple) else value

    def disarmed(message: Message) -> Message:
        return message if message["role"] == "assistant" else plain(message)

    def disarmed_tools(tools: Sequence[Any]) -> list[Any]:
        return [tool if callable(tool) else plain(tool) for tool in tools]

    return disarmed, disarmed_tools
