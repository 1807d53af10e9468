"""Creates the training corpus: demonstrations and toy skills as weighted token documents, drawn by step number.

Every pool is a function of (seed, number) alone, so that a resumed run sees the same documents as an uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from scripts.recipes.tiny.tokenizer import TURN_END

from turnwise.data.chat_tokens import disarming
from turnwise.evaluation.skills import SKILLS, stream
from turnwise.types import Message


@dataclass(frozen=True, slots=True)
class Document:
    """One conversation. ``weights[i]`` is the loss weight of predicting ``ids[i]``; ``ids[0]`` is never predicted."""

    ids: list[int]
    weights: list[float]


def encode(messages: Sequence[Message], tokenizer: Any, other: float) -> Document:
    """Returns a document with the token ids of ``ChatTokens``.

    Assistant text and its end-of-turn token have loss weight 1, and all other tokens have weight ``other``.
    """
    disarmed, _ = disarming(tokenizer)
    ids: list[int] = []
    weights: list[float] = []
    for message in messages:
        if message["role"] != "assistant":
            text = tokenizer.apply_chat_template([disarmed(message)], tokenize=False)
            own = 0
        else:
            text = message["content"] + TURN_END + "\n"
            head = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
            ids += head
            weights += [other] * len(head)
            own = 1
        piece = tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        weights += [1.0] * (len(piece) - 1) + [other] if own else [other] * len(piece)
    return Document(ids, weights)


def skill_conversations(count: int, seed: int) -> Iterator[list[Message]]:
    """Returns ``count`` question-and-answer pairs, with equal shares of all skills."""
    streams = [stream(skill, "train", seed) for skill in SKILLS.values()]
    order = Random(seed)
    for _ in range(-(-count // len(streams))):
        order.shuffle(streams)
        for item in islice((next(s) for s in streams), len(streams)):
            yield [*item.messages, {"role": "assistant", "content": item.reference}]


def micro_batches(documents: Iterable[Document], parts: int) -> list[list[Document]]:
    """Splits documents, sorted by length, into ``parts`` micro-batches of about equal token count, none of them empty.

    Raises:
        ValueError: there are fewer documents than parts.
    """
    ordered = sorted(documents, key=lambda d: len(d.ids))
    if len(ordered) < parts:
        raise ValueError(
            f"{len(ordered)} documents cannot fill {parts} micro-batches; generate more documents in each step"
        )
    total = sum(len(d.ids) for d in ordered)
    found: list[list[Document]] = [[] for _ in range(parts)]
    passed = index = 0
    for k, document in enumerate(ordered):
        due = min(parts - 1, passed * parts // total)
        index = min(due, index + bool(found[index]))  # one very long document must not make a part empty
        index = max(index, parts - len(ordered) + k)  # enough documents must remain for the last parts
        found[index].append(document)
        passed += len(document.ids)
    return found
