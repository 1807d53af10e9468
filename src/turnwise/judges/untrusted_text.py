"""Marks untrusted text in a prompt, so that a model treats the text as data and not as instructions.

There are three defences. First, markers before and after the text contain a random code, which is chosen after the text
was written. Second, every line of the text gets a prefix (spotlighting, arXiv:2403.14720). Third, control tokens,
invisible characters and unusual line ends are turned into plain text.
"""

from __future__ import annotations

import re
import secrets
import unicodedata

PREFIX = "| "
_LINE_ENDS = re.compile("\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")
# control tokens of chat templates, and the markers of this module
_CONTROL = re.compile(
    r"<\||\|>|<\uff5c|\uff5c>|<<+|>>+|</?s>|<[be]os>|</?(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>|\[/?SYSTEM_PROMPT\]",
    re.IGNORECASE,
)
_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs"}  # Unicode categories: control, format, unassigned, private use, surrogates


def new_code() -> str:
    """Returns a random code of 64 bits as hex digits."""
    return secrets.token_hex(8)


def neutral(text: str) -> str:
    """Returns ``text`` without characters that could hide or imitate instructions.

    Unusual line ends become newlines, control tokens are broken up by spaces, and invisible characters are replaced by
    escape sequences. Applying the function twice has the same effect as applying it once.
    """
    shown = _CONTROL.sub(lambda found: " ".join(found[0]), _LINE_ENDS.sub("\n", text))
    return "".join(
        _escape(char) if char not in "\n\t" and unicodedata.category(char) in _HIDDEN else char for char in shown
    )


def fenced(name: str, text: str, code: str) -> str:
    """Returns ``text`` with a prefix before each line, between markers that contain ``name`` and ``code``."""
    lines = "\n".join(PREFIX + line for line in neutral(text).split("\n"))
    return f"<<<BEGIN {name} {code}>>>\n{lines}\n<<<END {name} {code}>>>"


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
