"""Renders chat messages as tokens. Tokens that the policy wrote are kept and never tokenised a second time.

A conversation is one list of token ids. It consists of pieces, each written by the policy or by the environment:

    prompt | action | bridge | action | bridge | action
             ^ policy ^ environment

``prompt`` renders the opening messages. ``action`` is the text of the policy, with its end-of-turn token. ``bridge`` is
all text between two actions. Demonstrations and rollouts are built from these pieces, so equal texts get equal tokens.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from turnwise.data.read_records import UnusableError
from turnwise.data.toolcalls import REASONING
from turnwise.data.trajectories import used_twice
from turnwise.errors import InputError
from turnwise.types import Message, Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_HALF = re.compile("[\ud800-\udfff]")  # half a surrogate pair, which no tokenizer accepts


def disarming(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Callable[[Message], Message], Callable[[Sequence[Any]], list[Any]]]:
    """Returns a function that changes a message, and one that changes tool definitions, so that they contain no special
    token when they are rendered: a space is inserted after the first character of its string (``< |im_end|>``).
    Assistant messages, and added tokens that are not special (``<tool_call>`` in many vocabularies), stay.
    """
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    # The pattern consumes only the first character of a string, so that strings that overlap are all found.
    parts = [f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in sorted(special) if len(text) > 1]
    marker = re.compile("|".join(parts) or r"(?!)")

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return marker.sub(lambda match: f"{match[0]} ", _HALF.sub("\ufffd", value))
        if isinstance(value, Mapping):
            return {plain(key): plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list | tuple) else value

    def disarmed(message: Message) -> Message:
        return message if message["role"] == "assistant" else plain(message)

    def disarmed_tools(tools: Sequence[Any]) -> list[Any]:
        return [tool if callable(tool) else plain(tool) for tool in tools]

    return disarmed, disarmed_tools


_ASKED = {"role": "user", "content": "u"}  # first message of the test conversations
_SPOKEN = (
    "turnwise's action: b a\n 2  1 b B"  # action in a test conversation; sorting or escaping would change this text
)
_ANSWER = {"role": "user", "content": "v"}
_KEPT = 16384  # largest number of entries of each cache of texts
_NEAR = 1024  # largest number of decoded actions in the cache; the key of a long action takes much memory
EACH = 64  # number of turns at the start of a trajectory whose histories are all compared (see ``compared``)


class ChatTemplateError(InputError):
    """Raised if a chat template is missing, refuses the messages, or rewrites turns that the policy has written."""


@dataclass(frozen=True, slots=True)
class Spine:
    """A trajectory, or a part of it, as one list of token ids, so that no history is stored twice.

    For each assistant turn (start, stop), ``ids[:start]`` is the state before the turn, and ``ids[start:stop]`` is the
    turn's action with the end-of-turn token.
    """

    ids: tuple[int, ...]
    turns: tuple[tuple[int, int], ...]  # (start, stop) of every assistant turn


class ChatTokens:
    """Renders and tokenises conversations with a tokenizer's own chat template.

    ``end_id`` is the token that closes an assistant turn; eos, if a template closes turns only with plain text.
    ``stop_ids``, at which sampling stops, are ``end_id`` and eos.

    ``options`` are passed to the template, for example ``{"enable_thinking": False}`` for Qwen3. Rollouts keep the
    reasoning of earlier turns. In demonstrations the template may drop this reasoning, and ``spines`` then warns once.

    Raises:
        ChatTemplateError: the tokenizer has no chat template, the template changes or leaves out the text of messages,
            or no end-of-turn token is known.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any] | None = None) -> None:
        self.tokenizer = tokenizer
        self._options = dict(options or {})
        self._disarmed, self._disarmed_tools = disarming(tokenizer)
        self.name = str(getattr(tokenizer, "name_or_path", "") or "the tokenizer")
        if not tokenizer.chat_template:
            remedy = (
                "copy chat_template.jinja from the instruction-tuned model of the same family, or choose that model"
            )
            raise ChatTemplateError(f"{self.name} has no chat template: {remedy}")
        self._eos: Any = tokenizer.eos_token_id  # one id or None; the library's own annotation is wider
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._special = special | set(tokenizer.all_special_ids)
        self._try_out()
        self._warned = False
        # Observations and actions repeat often, so their tokens are cached.
        self._bridge = lru_cache(maxsize=_KEPT)(self._bridge_uncached)
        self._body = lru_cache(maxsize=_KEPT)(self._body_uncached)
        self._encode_after = lru_cache(maxsize=_KEPT)(self._encode_after_uncached)
        self._encode_action = lru_cache(maxsize=_KEPT)(self._encode_action_uncached)
        self._written = lru_cache(maxsize=_NEAR)(self._written_uncached)

    def _try_out(self) -> None:
        tokenizer = self.tokenizer
        self._opening = self.text([_ASKED])
        if _SPOKEN not in self.text([{"role": "user", "content": _SPOKEN}]):
            raise self._error("omits or changes the text of user messages")
        tail = self._cut([_ASKED, _spoken(_SPOKEN), _ANSWER])[1]
        self._last_tail = self._cut([_ASKED, _spoken(_SPOKEN)], prompt=False)[1]
        self.end_id, self._closing = self._end_of_turn(self._last_tail)
        self._end = str(tokenizer.convert_ids_to_tokens(self.end_id))
        if not tail.startswith(self._closing):
            middle = tail[: len(self._closing)]
            raise self._error(f"closes the last assistant turn with {self._closing!r} but earlier ones with {middle!r}")
        self.stop_ids = (self.end_id,) if self._eos in (None, self.end_id) else (self.end_id, self._eos)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        """Returns the token ids of the conversation so far and of the generation prompt."""
        return self._encode(self.text(messages, tools))

    def text(self, messages: Sequence[Message], tools: Sequence[Any] = (), prompt: bool = True) -> str:
        """Returns the text that the chat template renders for the conversation so far, with the generation prompt
        unless ``prompt`` is False.
        """
        shown = [dict(self._disarmed(m)) for m in messages]
        arguments = {"tools": self._disarmed_tools(tools) or None, "tokenize": False, "add_generation_prompt": prompt}
        try:
            return str(self.tokenizer.apply_chat_template(shown, **arguments, **self._options))
        except Exception as error:  # templates may raise any exception
            roles = " ".join(str(m.get("role")) for m in shown)
            raise self._error(f"refuses the messages, whose roles are {roles}: {error}") from error

    def bridge(self, observation: Message | Sequence[Message], truncated: bool = False) -> list[int]:
        """Returns the bridge between two actions: template text, observation and generation prompt, as token ids.

        If the first action was ``truncated``, the bridge begins with the missing end-of-turn token. ``observation`` is
        one message, or several messages that answer parallel tool calls.
        """
        messages = [observation] if isinstance(observation, Mapping) else observation
        ids = list(self._encode_after(self._bridge(_key(messages))))
        return self._close() + ids if truncated else ids

    def action(self, text: str) -> list[int]:
        """Returns the token ids of a demonstrated assistant reply, including the end-of-turn token."""
        return list(self._encode_action(self._body(_key([_spoken(text)]))))

    def decode(self, action_ids: Sequence[int]) -> str:
        """Returns an action's text after the last ``</think>``, without end-of-turn token and outer whitespace."""
        return self.written(action_ids).rpartition("</think>")[2].strip()

    def written(self, action_ids: Sequence[int]) -> str:
        """Returns the text of an action, including its reasoning, without end-of-turn token and outer whitespace."""
        return self._written(tuple(action_ids))

    def _written_uncached(self, action_ids: tuple[int, ...]) -> str:
        ids = list(action_ids)
        while ids and ids[-1] in self.stop_ids:
            ids.pop()
        text = str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)).strip()
        suffix = self._closing.removesuffix(self._end).strip()
        return text.removesuffix(suffix).strip()

    def spines(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[Spine]:
        """Returns the trajectory, without the messages after the last assistant turn, as token sequences (spines); only
        one if the template never rewrites earlier turns. If the rendered history of a turn differs from the spine so
        far, a new spine begins with this rendered history. So the history of each turn is exactly the text that the
        template shows the policy.
        """
        spines = self._split(messages, tools)
        if len(spines) > 1 and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self.name}: the chat template rewrites earlier turns: it drops their reasoning or moves text. This was "
                f"first seen before assistant turn {len(spines[0].turns)} of a trajectory. Use a template that keeps the "
                "history as it was written, or remove the reasoning from the demonstrations. Such trajectories are split "
                "at these turns",
                stacklevel=2,
            )
        return spines

    def reply(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> Spine:
        """Returns a spine whose only turn is the last assistant turn. The tokens before it are the rendered history."""
        (spine,) = self._split(messages, tools, last=True)
        return spine

    def _split(
        self, messages: Sequence[Message], tools: Sequence[Any], each: bool = False, last: bool = False
    ) -> list[Spine]:
        """See :meth:`spines`. The histories that are cut from a spine are checked against the template's own text: with
        ``each`` at all turns, else at those that ``compared`` selects. ``last`` selects only the last turn.
        """
        acts = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if not acts:
            raise ChatTemplateError(f"none of the {len(messages)} messages is an assistant turn")
        acts = acts[-1:] if last else acts
        spines: list[Spine] = []
        text = ""
        ids: list[int] = []
        turns: list[tuple[int, int]] = []
        looks = range(len(acts)) if each else compared(len(acts))
        for n, at in enumerate(acts):
            if n:
                observation = messages[acts[n - 1] + 1 : at]
                bridge = self._bridge(_key(observation)) if observation else ""
                text += bridge
                ids += self._encode_after(bridge)
            if n in looks and text != (history := self.text(messages[:at], tools)):
                if n >= EACH and not each:
                    return self._split(messages, tools, each=True)
                if turns:
                    spines.append(Spine(tuple(ids[: turns[-1][1]]), tuple(turns)))
                text, ids, turns = history, self._encode(history), []
            body = self._body(_key([messages[at]]))
            action = self._encode_action(body)
            turns.append((len(ids), len(ids) + len(action)))
            text += body + self._closing
            ids += action
        return [*spines, Spine(tuple(ids), tuple(turns))]

    # -- the text of the template

    def _cut(self, messages: Sequence[Message], prompt: bool = True) -> tuple[str, str]:
        head, spoken, tail = self.text(messages, prompt=prompt).partition(_SPOKEN)
        if not spoken:
            raise self._error("omits or changes the text of assistant messages")
        return head, tail

    def _end_of_turn(self, tail: str) -> tuple[int, str]:
        for token_id in self._encode(tail):
            if token_id in self._special:
                token = str(self.tokenizer.convert_ids_to_tokens(token_id))
                return token_id, tail[: tail.index(token) + len(token)]
        if self._eos is None:
            raise self._error("names no end-of-turn token, and neither does the tokenizer")
        return self._eos, ""

    def _body_uncached(self, spoken: str) -> str:
        """Returns the text, without end of turn, that the policy must write for ``spoken``, a message as JSON."""
        (message,) = json.loads(spoken)
        calls = message.get("tool_calls") or ()
        answers = [{"role": "tool", "content": "v", "tool_call_id": call.get("id")} for call in calls] or [_ANSWER]
        tail = self._closing + self._bridge(_key(answers))
        body = self._between(self.text([_ASKED, message, *answers]), tail)
        texts = [message.get(key) for key in ("content", *REASONING)]
        if body is None or not all(part.strip() in body for part in texts if isinstance(part, str)):
            # The template shortens past turns, but shows the last turn as the policy writes it.
            body = self._between(self.text([_ASKED, message], prompt=False), self._last_tail)
        if body is None:
            raise self._error(
                "does not write an assistant message as generation prompt, message and end-of-turn token in this order; use "
                "one whose generation prompt adds no text (such as an opened <think>) that past turns do not have"
            )
        return body

    def _error(self, what: str) -> ChatTemplateError:
        return ChatTemplateError(f"{self.name}: the chat template {what}")

    def _between(self, text: str, tail: str) -> str | None:
        if not (text.startswith(self._opening) and text.endswith(tail)):
            return None
        return text[len(self._opening) : len(text) - len(tail)]

    def _bridge_uncached(self, observation: str) -> str:
        answer = json.loads(observation)
        try:
            tail = self._cut([_ASKED, _spoken(_SPOKEN), *answer])[1]
        except ChatTemplateError:
            if answer[0].get("role") != "tool":
                raise
            call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}}
            spoken = {**_spoken(_SPOKEN), "tool_calls": [call] * len(answer)}
            tail = self._cut([_ASKED, spoken, *answer])[1]
            tail = tail[tail.index(self._closing) :]
        return tail.removeprefix(self._closing)

    # -- text to ids

    def _encode(self, text: str) -> list[int]:
        return encoded(self.tokenizer, text)

    def _encode_after_uncached(self, text: str) -> tuple[int, ...]:
        return tuple(self._encode(self._end + text)[1:])

    def _encode_action_uncached(self, body: str) -> tuple[int, ...]:
        before = self._encode(self._opening)
        whole = self._encode(self._opening + body)
        # The policy cannot write a token that begins before its own text, so no token may cross the action's start.
        ids = whole[len(before) :] if whole[: len(before)] == before else self._encode_after(body)
        return (*ids, *self._close())

    def _close(self) -> list[int]:
        suffix = self._closing.removesuffix(self._end)
        return [*(self._encode_after(suffix) if suffix else ()), self.end_id]


def _key(messages: Sequence[Message]) -> str:
    return json.dumps([dict(message) for message in messages], ensure_ascii=False)


def _spoken(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Returns the token ids of ``text``, to which the tokenizer adds no special tokens. A ChatTemplateError if it fails,
    for example because its regex takes too many steps.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=False)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised by the tokenizers library; not a subclass of Exception
            raise
        name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        raise ChatTemplateError(f"{name}: the tokenizer fails on a text of {len(text)} characters: {error}") from None


def compared(count: int) -> set[int]:
    """Returns the indices of the turns (of ``count`` turns) whose rendered histories are compared with the token ids:
    the first ``EACH``, later ones whose index grows by a factor of 1.5, and the last. So the total length of the
    compared histories stays small. A turn that a template rewrites is rewritten in all later histories, so the next
    comparison finds the change.
    """
    turns, turn = set(range(min(count, EACH))), float(EACH)
    while turn < count:
        turns.add(int(turn))
        turn *= 1.5
    return turns | {count - 1}


# -- a run's expert trajectories, each with its tokens -----------------------------------------------------------------


Check = Callable[[Sequence[str], Sequence[str]], None]


class Demonstration(NamedTuple):
    trajectory: Trajectory
    spines: list[Spine]


class Demonstrations:
    """Expert trajectories by id, in the order in which they were added. ``chat`` tokenises each of them once."""

    def __init__(self, chat: ChatTokens) -> None:
        self.chat = chat
        self._by_id: dict[str, Demonstration] = {}

    def add(self, trajectory: Trajectory, shown: Trajectory | None = None, check: Check | None = None) -> None:
        """Adds an expert trajectory and its tokens.

        Args:
            shown: the trajectory in the form that the chat template can render; None: ``trajectory`` itself.
            check: a function that receives the texts of the rendered replies, in order, first without and then with
                their reasoning. It may raise an error to refuse the trajectory.
        """
        if trajectory.id in self._by_id:
            raise used_twice(trajectory.id, self._by_id[trajectory.id].trajectory.source)
        shown = shown or trajectory
        rendered = shown.messages, shown.tools
        spines = [self.chat.reply(*rendered)] if trajectory.pivot else self.chat.spines(*rendered)
        stops = self.chat.stop_ids
        if any(
            spine.ids[at] in stops for spine in spines for start, stop in spine.turns for at in range(start, stop - 1)
        ):
            raise UnusableError(
                "end of turn inside",
                "a demonstrated reply continues after the end-of-turn token, at which a policy would stop; remove the "
                "chat template's own tokens from the text",
            )
        if check is not None:
            replies = [spine.ids[start:stop] for spine in spines for start, stop in spine.turns]
            check([self.chat.decode(ids) for ids in replies], [self.chat.written(ids) for ids in replies])
        self._by_id[trajectory.id] = Demonstration(trajectory, spines)

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Demonstration]:
        return iter(self._by_id.values())

    def named(self, name: str) -> Trajectory | None:
        demonstration = self._by_id.get(name)
        return demonstration and demonstration.trajectory
