"""Changes text that the policy did not write, so that a tokenizer reads no special tokens in it.

A tokenizer reads the string ``<|im_end|>`` in any text as the special token. Without this module, a web page or the
output of a command that contains this string would end its own chat turn and could begin another turn.
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
    """Returns a function that changes a message, and a function that changes tool definitions, so that they contain no
    special token when they are rendered.

    Both functions insert a space after the first character of each special token's string, for example
    ``< |im_end|>``. Assistant messages are left unchanged. Added tokens that are not special (``<tool_call>`` in many
    vocabularies) are also left unchanged, because they end no turn.
    """
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    # The pattern consumes only the first character of a string, so that strings that overlap are all found.
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
