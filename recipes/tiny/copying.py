"""Copying drills: lines of words and numbers to write again, whole or looked up by a word, in the forms that calls have.

In a demonstration a handful of tokens are copied from what stands before, and a small model takes long to find out how; in a
drill every token of the answer is. Words are drawn from the whole vocabulary and made up, so that none is known by heart.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from recipes.tiny import names
from recipes.tiny.corpus import Document, encode

_MADE_UP, _NUMBERS = 0.25, 0.4  # shares of the items; the rest are words of the vocabulary


def copy_documents(tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
    """``count`` drills; a token of an answer weighs ``weight``, everything else nothing."""
    rng = Random(f"copy {seed}")
    known = sorted(
        {text for token in tokenizer.get_vocab() if (text := token.removeprefix("Ġ")).isalpha() and text.isascii()}
    )
    for _ in range(count):
        asked, answer = rng.choice((whole, recalled))(rng, known)
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        document = encode(messages, tokenizer, 0.0)
        yield Document(document.ids, [weight * w for w in document.weights])


def whole(rng: Random, known: list[str]) -> tuple[str, str]:
    """A line and the same line, each in a form of its own."""
    items = [item(rng, known) for _ in range(rng.randint(4, 10))]
    return rng.choice(_FORMS)(items), rng.choice(_FORMS)(items)


def recalled(rng: Random, known: list[str]) -> tuple[str, str]:
    """Pairs and the first of each in another order; the answer has the pairs in that order."""
    pairs = {item(rng, known): item(rng, known) for _ in range(rng.randint(3, 5))}
    order = rng.sample(list(pairs), len(pairs))
    form = rng.choice(_FORMS)
    told, asked = form([word for pair in pairs.items() for word in pair]), " ".join(order)
    return f"{told}\n{asked}", rng.choice(_FORMS)([word for key in order for word in (key, pairs[key])])


def item(rng: Random, known: list[str]) -> str:
    """A number, a known word or one that is made up."""
    draw = rng.random()
    if draw < _NUMBERS:
        return str(rng.randrange(10 ** rng.randint(1, 4)))
    return names.word(rng) if draw < _NUMBERS + _MADE_UP else rng.choice(known)


def _plain(items: list[str]) -> str:
    return " ".join(items)


def _quoted(items: list[str]) -> str:
    return ", ".join(f"'{each}'" for each in items)


def _lines(items: list[str]) -> str:
    return "\n".join(items)


_FORMS = (_plain, _plain, _quoted, _lines)
