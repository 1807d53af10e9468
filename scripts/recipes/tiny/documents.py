"""Creates the training documents: encoded conversations, toy skills, and drills in copying and in reading lists.

Every document is a function of seeds and numbers alone, so that a resumed run sees the same ones as an uninterrupted run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Any

from scripts.recipes.tiny.tokenizer import TURN_END

from turnwise.data.chat_tokens import disarming
from turnwise.evaluation.skills import SKILLS, stream
from turnwise.types import Message, Task
from turnwise_worlds.apibank.office import HELD_OUT
from turnwise_worlds.bfcl import generated_tasks
from turnwise_worlds.household import HouseholdEnv
from turnwise_worlds.household.rooms import NOTHING, bits


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
        raise ValueError(f"{len(ordered)} documents cannot fill {parts} micro-batches; draw more documents a step")
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


# -- made-up names -----------------------------------------------------------------------------------------------------
# With the few names that training tasks share, a base memorises names instead of copying them, and fails on held-out ones.

_ONSETS = ("b", "br", "c", "ch", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "sh", "st", "t", "w", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "oo", "y")
_CODAS = ("", "d", "g", "ll", "m", "n", "r", "rd", "s", "t", "x", "te")


def word(rng: Random) -> str:
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((1, 1, 2))))


def drawn(draw: Callable[[], str], count: int, taken: Collection[str]) -> tuple[str, ...]:
    """Returns ``count`` different draws, none of which is in ``taken``."""
    found: dict[str, None] = {}
    while len(found) < count:
        if (name := draw()) not in taken:
            found[name] = None
    return tuple(found)


def simulated_names(rng: Random) -> dict[str, tuple[str, ...]]:
    """Returns names for the simulated APIs, without held-out names."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    kinds: dict[str, Callable[[], str]] = {
        "folders": lambda: word(rng),
        "files": lambda: f"{word(rng)}.txt",
        "words": lambda: word(rng),
        "titles": lambda: word(rng),
        "stocks": lambda: 3 * rng.choice(letters),
        "people": lambda: word(rng).capitalize(),
    }
    return {kind: drawn(draw, 4, generated_tasks.HELD_OUT[kind]) for kind, draw in kinds.items()}


def office_names(rng: Random) -> dict[str, tuple[str, ...]]:
    """Returns names for the office, without held-out names."""
    kinds: dict[str, tuple[Callable[[], str], int]] = {
        **dict.fromkeys(("person", "topic", "word", "city", "symptom"), (lambda: word(rng), 4)),
        "time": (lambda: f"{rng.randrange(5, 22)}:{rng.choice(('00', '15', '30', '45'))}", 4),
        "content": (lambda: f"{word(rng)} {word(rng)}", 4),
        "room": (lambda: f"r{rng.randrange(1, 20)}", 4),
        "stock": (lambda: 3 * rng.choice("abcdefghijklmnopqrstuvwxyz"), 4),
        "doctor": (lambda: f"dr {word(rng)}", 3),
        "date": (lambda: f"{rng.choice(('may', 'june', 'july'))} {rng.randrange(1, 29):02d}", 4),
    }
    return {kind: drawn(draw, count, HELD_OUT[kind]) for kind, (draw, count) in kinds.items()}


# -- drills in copying -------------------------------------------------------------------------------------------------
# In a demonstration only a few tokens are copies of earlier text, so that a small model takes long to learn copying. In a
# drill every token of the answer is a copy, of words from the whole vocabulary or made up, so that none can be memorised.

_MADE_UP, _NUMBERS = 0.25, 0.4  # shares among the items; all other items are words of the vocabulary
_FORMS: tuple[Callable[[list[str]], str], ...] = (
    *(2 * (" ".join,)),
    lambda items: ", ".join(f"'{each}'" for each in items),
    "\n".join,
)


def copy_documents(tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
    """Returns ``count`` drills. Each token of an answer has loss weight ``weight``, all other tokens have weight 0."""
    rng = Random(f"copy {seed}")
    known = sorted(
        {text for token in tokenizer.get_vocab() if (text := token.removeprefix("Ġ")).isalpha() and text.isascii()}
    )
    for _ in range(count):
        asked, answer = rng.choice((_whole, _recalled))(rng, known)
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        document = encode(messages, tokenizer, 0.0)
        yield Document(document.ids, [weight * w for w in document.weights])


def _whole(rng: Random, known: list[str]) -> tuple[str, str]:
    """Returns a line of items, and a second line with the same items in a form that may differ."""
    items = [_item(rng, known) for _ in range(rng.randint(4, 10))]
    return rng.choice(_FORMS)(items), rng.choice(_FORMS)(items)


def _recalled(rng: Random, known: list[str]) -> tuple[str, str]:
    """Returns a question (pairs, then their first items in another order) and the answer (the pairs in that order)."""
    pairs = {_item(rng, known): _item(rng, known) for _ in range(rng.randint(3, 5))}
    order = rng.sample(list(pairs), len(pairs))
    form = rng.choice(_FORMS)
    told, asked = form([word for pair in pairs.items() for word in pair]), " ".join(order)
    return f"{told}\n{asked}", rng.choice(_FORMS)([word for key in order for word in (key, pairs[key])])


def _item(rng: Random, known: list[str]) -> str:
    draw = rng.random()
    if draw < _NUMBERS:
        return str(rng.randrange(10 ** rng.randint(1, 4)))
    return word(rng) if draw < _NUMBERS + _MADE_UP else rng.choice(known)


# -- drills in reading lists -------------------------------------------------------------------------------------------
# In a demonstration only few tokens depend on whether the task's object is in the last list, but all tokens have weight. In
# a drill every list requires the choice to take the object or to walk on, and little else has weight.

_LISTS = 3, 8  # smallest and largest number of lists of a drill
_PRESENT = 0.5  # share of the lists that are drawn from those with the object
_NAME = 0.3  # loss weight of the object's name and number; the choice itself has weight 1


@dataclass(frozen=True, slots=True)
class Shown:
    """The list that the policy sees when it walks to a receptacle; ``objects`` are names with their numbers."""

    place: str
    text: str
    objects: tuple[str, ...]

    def find(self, kind: str) -> str | None:
        return next((name for name in self.objects if name.rsplit(" ", 1)[0] == kind), None)


def reading_documents(env: HouseholdEnv, tokenizer: Any, count: int, seed: int, weight: float) -> Iterator[Document]:
    """Yields ``count`` drills, one for each of ``count`` new training tasks, over lists of rooms of the task's kind.

    ``weight`` is the loss weight of the first token of a choice, ``take`` or ``go``.
    """
    rng = Random(seed)
    env = HouseholdEnv(horizon=max(env.horizon, 100))  # a tour takes one turn for each receptacle
    tasks = list(env.tasks("train", count, seed))
    lists: dict[str, list[Shown]] = defaultdict(list)
    for task in tasks:
        lists[task.data["kind"]] += _tour(env, task)
    opened = {task.id: env.reset(task).opening()[0]["content"] for task in tasks}
    for task in tasks:
        kind, near = task.data["goal"]["object"], lists[task.data["kind"]]
        holding = [shown for shown in near if shown.find(kind)]
        chosen = [
            rng.choice(holding if holding and rng.random() < _PRESENT else near) for _ in range(rng.randint(*_LISTS))
        ]
        text = opened[task.id]
        yield _drill(rng.choice((text, text.split("\n\n")[-1])), kind, chosen, tokenizer, weight)


def _tour(env: HouseholdEnv, task: Task) -> Iterator[Shown]:
    """Yields the lists of all receptacles of a room that are open and not empty."""
    session = env.reset(task)
    world, state = session.world, session.state
    for r, place in enumerate(world.receptacles):
        if state.contents[r] and state.accessible(world, r):
            text = session.step(f"go to {place}").observation
            yield Shown(place, text, tuple(world.objects[i] for i in bits(state.contents[r])))


def _drill(task: str, kind: str, lists: list[Shown], tokenizer: Any, weight: float) -> Document:
    """Returns one drill. ``task`` is the text of the first message, ``kind`` the kind of the requested object.

    The object is not really taken, so that the hands stay empty; the next walk is then not a choice.
    """
    document = encode([{"role": "user", "content": task}], tokenizer, 0.0)

    def say(text: str, weights: list[float]) -> None:
        """Appends an assistant turn whose first tokens have these weights."""
        turn = encode([{"role": "assistant", "content": text}], tokenizer, 0.0)
        start = turn.weights.index(1.0)
        document.ids.extend(turn.ids)
        document.weights.extend([0.0] * start + weights + [0.0] * (len(turn.ids) - start - len(weights)))

    def hear(text: str) -> None:
        answer = encode([{"role": "user", "content": text}], tokenizer, 0.0)
        document.ids.extend(answer.ids)
        document.weights.extend(answer.weights)

    due = 0.0
    for shown in lists:
        say(f"go to {shown.place}", [due])
        hear(shown.text)
        found, due = shown.find(kind), weight
        if found:
            say(f"take {found} from {shown.place}", [weight, weight * _NAME, weight * _NAME])
            hear(NOTHING)
            due = 0.0
    return document
