"""What others than the policy write, freed of the strings that a tokenizer reads as special tokens.

A tokenizer finds ``<|im_end|>`` inside any text and reads it as the token itself. A page, the output of a command or an echoed
query that holds it would end the turn that it stands in, and begin one of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair: no character, and no tokenizer takes it


def disarming(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Callable[[Message], Message], Callable[[Sequence[Any]], list[Any]]]:
    """Messages and tools as they may be rendered: each special token's string in what the policy did not write gets a space
    after its first character, ``< |im_end|>``. In tools that is so of descriptions, names and every other text of a schema.

    Added tokens that are not special (``<tool_call>`` in many vocabularies) are ordinary text: they end no turn. An assistant's
    message is what the policy writes, and stays as it is.
    """
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    # Nothing but the first character is consumed, so that tokens whose strings overlap are all found.
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
