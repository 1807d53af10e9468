"""Renders chat messages and tokenises text, with a clear error if the chat template or the tokenizer fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnwise.data.render_watch import rendering
from turnwise.data.template_limits import checked_text
from turnwise.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EACH = 64  # number of turns at the start of a trajectory whose histories are all compared (see ``compared``)


class ChatTemplateError(InputError):
    """Raised if a chat template is missing, refuses the messages, or rewrites turns that the policy has written."""


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
        ChatTemplateError: the template refuses the messages, or exceeds its time or memory limits. The error message
            contains ``name``, the name of the model.
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
        ChatTemplateError: the tokenizer fails on the text, for example because its regex takes too many steps.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised by the tokenizers library; not a subclass of Exception
            raise
        name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        raise ChatTemplateError(f"{name}: the tokenizer fails on a text of {len(text)} characters: {error}") from None


@dataclass(frozen=True, slots=True)
class Spine:
    """A trajectory, or a part of it, as one list of token ids, so that no history is stored twice.

    For each assistant turn (start, stop), ``ids[:start]`` is the state before the turn, and ``ids[start:stop]`` is the
    turn's action with the end-of-turn token.
    """

    ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]  # (start, stop) of every assistant turn


def compared(count: int) -> set[int]:
    """Returns the indices of the turns (of ``count`` turns) whose rendered histories are compared with the token ids.

    These are the first ``EACH`` turns, later turns whose index grows by a factor of 1.5 each time, and the last turn.
    So the total length of the compared histories stays small. If a template rewrites a turn, the turn is also rewritten
    in all later histories, so the next comparison finds the change.
    """
    found, turn = set(range(min(count, EACH))), float(EACH)
    while turn < count:
        found.add(int(turn))
        turn *= 1.5
    return found | {count - 1}


def rewritten(name: str, spines: Sequence[Spine]) -> str:
    """Returns the warning that the chat template of the model ``name`` rewrites earlier turns.

    ``spines`` are the token lists that one trajectory needs because of this.
    """
    return (
        f"{name}: the chat template rewrites earlier turns: it drops their reasoning or moves text. This was first "
        f"seen before assistant turn {len(spines[0].turns)} of a trajectory. Use a template that keeps the history as "
        "it was written, set data.thinking=keep or data.thinking=drop, or remove the reasoning from the demonstrations"
    )
