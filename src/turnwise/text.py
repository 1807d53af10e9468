"""Text that others wrote, made fit for a terminal and for a message: without control characters, bounded, without secrets."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

LINE = 2000  # characters of a line of a message; a longer one is cut

# Terminals obey control characters, the bidirectional marks change the order in which a line is read, and no stream can
# encode half a surrogate pair. Newline and tab stay.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SAID = 4096  # bytes of a server's answer that are looked at
_MASK = "[masked]"
_SECRETS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:bearer|basic|token)[\s:=\"'\\]+[^\s\"',;\\]+",
        r"\b[\w-]*(?:authorization|api[-_]?key|access[-_]?token|secret|password|passwd|cookie)[\w-]*[\"'\\]*\s*[:=]\s*[\"'\\]*[^\s\"',;\\]+",
        r"://[^\s/@]+@",
        r"\b(?:sk|pk|hf|ghp|gho|xox[a-z])[-_][\w-]{6,}",
        r"(?=[\w+/=.-]*\d)(?=[\w+/=.-]*[a-z])[\w+/=.-]{24,}",  # letters and digits in a row, as keys are
    )
)


class TwiceError(ValueError):
    """A JSON object names a key twice; readers would drop the first value without a word."""

    def __init__(self, key: str) -> None:
        super().__init__("an object names a key twice")
        self.key = key


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object of these pairs, as ``object_pairs_hook`` of a JSON reader.

    Raises:
        TwiceError: a key stands twice.
    """
    if len(found := dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        raise TwiceError(next(name for name in found if names.count(name) > 1))
    return found


def plain(text: str, most: int = LINE) -> str:
    """``text`` with its control characters escaped, and each line cut after ``most`` characters."""
    return "\n".join(_line(line, most) for line in text.split("\n"))


def said(body: bytes | str, *secrets: str | None, most: int = 200) -> str:
    """What a server said, in one line that may stand in a message.

    Everything that looks like a credential is masked, and so are the ``secrets``: a server may answer with what it was sent.

    Args:
        body: of its answer, or one of its headers.
        secrets: that were sent; None counts as none.
        most: characters of the line.
    """
    text = body[:_SAID].decode(errors="replace") if isinstance(body, bytes) else body[:_SAID]
    if len(body) > _SAID:
        text = re.sub(r"\S+$", "", text)  # the cut may have gone through a key, of which half would pass
    for secret in filter(None, secrets):
        for form in {secret, json.dumps(secret)[1:-1], quote(secret, safe=""), secret[::-1]}:
            text = text.replace(form, _MASK)
    for pattern in _SECRETS:
        text = pattern.sub(_MASK, text)
    return _line(" ".join(text.split()), most)


def _line(text: str, most: int) -> str:
    cut = text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), cut)


def parse_json(text: str | bytes) -> Any:
    """The value of JSON that others wrote, whose texts can be written and shown.

    Raises:
        ValueError: it is no JSON, names NaN or an infinity, is nested too deeply, or holds half a surrogate pair.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8-sig")  # json would let halves of pairs pass
        return whole_characters(json.loads(text, parse_constant=_refuse))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def whole_characters(value: Any) -> Any:
    """``value`` back, a JSON value whose texts can be written as UTF-8.

    Raises:
        ValueError: one of them holds half a surrogate pair, or it is nested too deeply.
    """
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("it holds half a surrogate pair") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
