"""Renders chat messages and tokenises text. If the chat template or the tokenizer fails, it raises a clear error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.data.templates import checked_text, rendering
from turnwise.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class ChatTemplateError(InputError):
    """A chat template is missing, refuses the messages, or rewrites turns that the policy has already written."""


def rendered(
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[Any],
    prompt: bool,
    options: Mapping[str, Any],
) -> str:
    """Returns the text that the chat template makes of messages, with the generation prompt if ``prompt`` is True.

    Raises:
        ChatTemplateError: the template refuses the messages, or exceeds its time or memory limits. The message contains
            ``name``, the name of the model.
    """
    try:
        with rendering():
            text = tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=prompt, **options
            )
        return checked_text(str(text))
    except Exception as error:  # templates may raise any exception
        roles = " ".join(str(m.get("role")) for m in messages)
        raise ChatTemplateError(
            f"{name}: the chat template refuses the messages, whose roles are {roles}: {error}"
        ) from error


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns the token ids of ``text``. The tokenizer adds no special tokens.

    Raises:
        ChatTemplateError: the tokenizer fails on the text, for example because its pattern takes too many steps.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised by the tokenizers library; not a subclass of Exception
            raise
        name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        raise ChatTemplateError(f"{name}: the tokenizer fails on a text of {len(text)} characters: {error}") from None
