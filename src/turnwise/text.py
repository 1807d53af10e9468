"""Makes untrusted text safe to print (escapes control characters, masks secrets, shortens), and numbers readable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from urllib.parse import quote

LINE = 2000  # largest length in characters of one line of a message; longer lines are cut

# This expression matches the characters that are escaped: control characters, which terminals obey; bidirectional
# marks, which change the order in which a line is read; and single halves of a surrogate pair, which no stream can
# encode. Newline and tab are not escaped.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SAID = 4096  # largest number of bytes of a server's answer that are used for a message
_MASK = "[masked]"
_SECRETS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\b(?:bearer|basic|token)[\s:=\"'\\]+[^\s\"',;\\]+",
        r"\b[\w-]*(?:authorization|api[-_]?key|access[-_]?token|secret|password|passwd|cookie)[\w-]*[\"'\\]*\s*[:=]\s*[\"'\\]*[^\s\"',;\\]+",
        r"://[^\s/@]+@",
        r"\b(?:sk|pk|hf|ghp|gho|xox[a-z])[-_][\w-]{6,}",
        r"(?=[\w+/=.-]*\d)(?=[\w+/=.-]*[a-z])[\w+/=.-]{24,}",  # a long run of letters and digits, which may be a key
    )
)


def plain(text: str, most: int = LINE) -> str:
    return "\n".join(_line(line, most) for line in text.split("\n"))


def plain_body(body: bytes | str, *secrets: str | None, most: int = 200) -> str:
    """The beginning of a server's answer (its body or a header) as one line for a message. What looks like a credential
    is masked, and so are the ``secrets`` that were sent, which the server may repeat.
    """
    text = body[:_SAID].decode(errors="replace") if isinstance(body, bytes) else body[:_SAID]
    if len(body) > _SAID:
        text = re.sub(r"\S+$", "", text)  # the cut may have split a key, whose first half would not be recognised
    for secret in filter(None, secrets):
        for form in {secret, json.dumps(secret)[1:-1], quote(secret, safe=""), secret[::-1]}:
            text = text.replace(form, _MASK)
    for pattern in _SECRETS:
        text = pattern.sub(_MASK, text)
    return _line(" ".join(text.split()), most)


def _line(text: str, most: int) -> str:
    cut = text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), cut)


# -- numbers -----------------------------------------------------------------------------------------------------------


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def signed(value: float | None) -> str:
    """A change in percentage points with its sign, such as ``+20.8``. Zero has no sign."""
    if value is None:
        return "-"
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"


def interval(bounds: Sequence[float] | None, show: Callable[[float], str] = signed) -> str:
    return "-" if bounds is None else f"[{show(bounds[0])}, {show(bounds[1])}]"


def count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def nats(value: float | None, sign: bool = False) -> str:
    return "-" if value is None else f"{value:+.3f}" if sign else f"{value:.3f}"


def duration(seconds: float) -> str:
    """A duration such as ``8.4 s``, ``7 min 05 s`` or ``2 h 03 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
