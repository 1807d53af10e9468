"""Creates copying drills: lines of words and numbers to repeat, or to look up by a word, in the forms of tool calls.

In a demonstration only a few tokens are copies of earlier text, so that a small model takes long to learn copying. In a
drill every token of the answer is a copy. Words are drawn from the whole vocabulary or made up, so that they cannot be
memorised.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from scripts.recipes.tiny import names
from scripts.recipes.tiny.corpus import Document, encode

# shares of made-up words and of numbers among the items; all other items are words of the vocabulary
_MADE_UP, _NUMBERS = 0.25, 0.4


def copy_documents(tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
    """Returns ``count`` drills. Each token of an answer has loss weight ``weight``, all other tokens have weight 0."""
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
    """Returns a line of items, and a second line with the same items in a form that may differ."""
    items = [item(rng, known) for _ in range(rng.randint(4, 10))]
    return rng.choice(_FORMS)(items), rng.choice(_FORMS)(items)


def recalled(rng: Random, known: list[str]) -> tuple[str, str]:
    """Returns a question (pairs, then their first items in another order) and the answer (the pairs in that order)."""
    pairs = {item(rng, known): item(rng, known) for _ in range(rng.randint(3, 5))}
    order = rng.sample(list(pairs), len(pairs))
    form = rng.choice(_FORMS)
    told, asked = form([word for pair in pairs.items() for word in pair]), " ".join(order)
    return f"{told}\n{asked}", rng.choice(_FORMS)([word for key in order for word in (key, pairs[key])])


def item(rng: Random, known: list[str]) -> str:
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
