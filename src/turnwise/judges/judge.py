"""The interface of a judge, which scores the policy's replies while rollouts are still running, its rubric, and the
prompt and answer of a judging model.

A score is a weighted mean of four dimensions, limited by caps and rounded to a tier (AWPO, arXiv:2512.19126, App. B.2).
The reply may address the judge, so untrusted text is fenced in the prompt: markers with a random code stand around it,
every line of it gets a prefix (spotlighting, arXiv:2403.14720), and control tokens and invisible characters become
plain text. The model's answer is parsed strictly.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, Protocol

from turnwise.errors import InputError
from turnwise.files import TwiceError, once
from turnwise.types import Message, ToolCall

TIERS = (1.00, 0.90, 0.75, 0.50, 0.25, 0.00)
WEIGHTS = {"reasoning": 0.35, "tools": 0.30, "parameters": 0.25, "conduct": 0.10}

# Caps: the highest score of a reply if a parameter differs, a tool is missing, or a tool is invented.
PARAMETER_DIFFERS = 0.75
TOOL_MISSING = 0.50
TOOL_INVENTED = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A reply of the policy that a judge is to score, with the conversation before the reply and the reference."""

    id: str  # only a label: candidates that differ only in ``id`` share one request
    prompt: tuple[Message, ...]  # the conversation up to the reply
    text: str  # the reply as the policy wrote it, including thinking and tool calls
    thinking: str  # the reply's text without its tool calls
    calls: tuple[ToolCall, ...] | None  # the reply's tool calls; None if the reply cannot be parsed
    reference: str | None  # a reference rationale for this step; None: there is none
    reference_calls: tuple[ToolCall, ...]  # the correct tool calls
    tools: tuple[Mapping[str, Any], ...] = ()  # the tool definitions that the policy saw


class Judge(Protocol):
    """Scores replies. A score is one of ``TIERS``, which are numbers in [0, 1]."""

    def submit(self, candidate: Candidate) -> Future[float | None]:
        """Starts to score a candidate and returns at once. The future's result is the score; None if scoring failed."""
        ...

    def report(self) -> dict[str, float]: ...

    def close(self) -> None:
        """Cancels all questions that are still running. Their futures get the result None."""
        ...


@dataclass(frozen=True, slots=True)
class Rubric:
    name: str
    text: str
    version: str  # the name and the first eight hex digits of the SHA-256 hash of the text


@cache
def load_rubric(name: str) -> Rubric:
    folder = files("turnwise.judges") / "rubrics"
    texts = {item.name.removesuffix(".txt"): item for item in folder.iterdir() if item.name.endswith(".txt")}
    if name not in texts:
        raise InputError(f"rubric: there is no rubric {name!r}; choose one of {', '.join(sorted(texts))}")
    text = texts[name].read_text(encoding="utf-8")
    return Rubric(name, text, f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")


def snap(score: float) -> float:
    """The nearest tier; of two that are equally near, the lower one."""
    if not (math.isfinite(score) and 0 <= score <= 1):
        raise ValueError(f"score must be in [0, 1], got {score}")
    # Distances are rounded, because in floating point 0.95 is nearer to 0.90 than to 1.00.
    return min(TIERS, key=lambda tier: (round(abs(tier - score), 9), tier))


# -- the prompt of a judging model, and its answer ---------------------------------------------------------------------


_SCORE = {"type": "number", "minimum": 0, "maximum": 1}
_SCHEMA = {"type": "object", "properties": {"score": _SCORE}, "required": ["score"], "additionalProperties": False}
# of a request, unless ``judge.extra`` has another, such as {type: json_object} for a server that knows no schemas
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": _SCHEMA}}
# has only one repetition, because several would take cubic time on blank text
_CODE_BLOCK = re.compile(r"\A```(?:json)?(.*)```\Z", re.DOTALL)
PREFIX = "| "
_LINE_ENDS = re.compile("\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")
# control tokens of chat templates, and the markers of this module
_CONTROL = re.compile(
    r"<\||\|>|<\uff5c|\uff5c>|<<+|>>+|</?s>|<[be]os>|</?(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|\[/?SYSTEM_PROMPT\]",
    re.IGNORECASE,
)
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs"}  # Unicode categories: control, format, unassigned, private use, surrogates


class AnswerError(ValueError):
    """Raised if the judging model's answer contains no valid score."""

    def __init__(self, kind: Literal["invalid", "out_of_range"], what: str) -> None:
        super().__init__(what)
        self.kind = kind


def new_code() -> str:
    return secrets.token_hex(8)


def neutral(text: str) -> str:
    """Returns ``text`` without characters that could hide or imitate instructions: unusual line ends become newlines,
    control tokens are broken up by spaces, and invisible characters are replaced by escape sequences.
    """
    shown = _CONTROL.sub(lambda found: " ".join(found[0]), _LINE_ENDS.sub("\n", text))
    return "".join(_escape(char) if unicodedata.category(char) in _HIDDEN else char for char in shown)


def fenced(name: str, text: str, code: str) -> str:
    lines = "\n".join(PREFIX + line for line in neutral(text).split("\n"))
    return f"<<<BEGIN {name} {code}>>>\n{lines}\n<<<END {name} {code}>>>"


def _escape(char: str) -> str:
    if char in "\n\t":
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def judge_question(
    rubric: Rubric, candidate: Candidate, code: str, section: Callable[[str, str, str], str] = fenced
) -> list[dict[str, str]]:
    """The chat messages that ask a judging model to score a candidate. The system message contains only the rubric, so
    that a server can cache it for all candidates. ``section`` puts markers with the random text ``code`` around an
    untrusted text (name, text, code).
    """
    reference = candidate.reference or "(no reference rationale: judge the reasoning by the true calls)"
    sections = [
        ("tools", tools_text(candidate.tools)),
        ("conversation", transcript(candidate.prompt)),
        ("reference_rationale", reference),
        ("true_calls", calls_text(candidate.reference_calls)),
        ("reply", candidate.text),
    ]
    body = "\n\n".join(section(name, text, code) for name, text in sections)
    ask = 'Grade the section "reply" by the rules you were given. Answer with one JSON object: {"score": ...}'
    return [
        {"role": "system", "content": rubric.text},
        {"role": "user", "content": f"The code of this request is {code}.\n\n{body}\n\n{ask}"},
    ]


def read_score(answer: str) -> float:
    """Returns the score in an answer of a judging model, or raises an AnswerError.

    The answer must be one JSON object. It may be in a code block, or after reasoning that ends with ``</think>``. No
    other text is searched for a score, because the model may quote a score that the candidate's reply demands.
    """
    text = answer.rpartition("</think>")[2].strip()
    if block := _CODE_BLOCK.match(text):
        text = block[1].strip()
    try:
        verdict = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise AnswerError(
            "invalid", str(error) if isinstance(error, TwiceError) else "it is not one JSON object"
        ) from error
    score = verdict.get("score") if isinstance(verdict, dict) else None
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise AnswerError("invalid", 'it must be one JSON object that holds "score", a number')
    if not 0 <= score <= 1:
        raise AnswerError("out_of_range", "the score lies outside the range of the rubric")
    return float(score)


def transcript(messages: Iterable[Message]) -> str:
    parts = []
    for message in messages:
        calls = [_json(call) for call in message.get("tool_calls") or ()]
        parts.append("\n".join([f"[{message['role']}]", *filter(None, [str(message.get("content") or "")]), *calls]))
    return "\n\n".join(parts) or "(empty)"


def calls_text(calls: Iterable[ToolCall]) -> str:
    return "\n".join(_json({"name": call.name, "arguments": call.arguments}) for call in calls) or "(no call)"


def tools_text(tools: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(_json(tool) for tool in tools) or "(not listed)"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=dict)
