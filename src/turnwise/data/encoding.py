"""Tokenises text, and turns failures of a tokenizer into clear errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnwise.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatTemplateError(InputError):
    """The chat template is missing, refuses these messages, or rewrites turns that the policy has already written."""


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns the ids of ``text`` without special tokens.

    Raises:
        ChatTemplateError: the tokenizer fails on it, for example because its pattern takes too many steps.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of the tokenizers library; not a subclass of Exception
            raise
        name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        raise ChatTemplateError(f"{name}: it fails on a text of {len(text)} characters: {error}") from None
