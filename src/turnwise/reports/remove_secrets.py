"""Removes secrets and the paths of this machine from the files of a run before they are published."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from turnwise.runs.config_hash import shown_only
from turnwise.runs.run_folder import RECORD

MASK = "[masked]"
_SECRET = r"(?:token|key|secret|passwo?rd|passwd|credentials?|authorization|cookie)"
_VALUE = r"(\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;&|)\]}]+\]?)"
# matches token=..., "api_key": "..." and headers such as authorization, in which a scheme (such as bearer) precedes the
# value
_NAMED = re.compile(
    rf"((?<![a-z])(?:api|access|auth)?{_SECRET}[\"']?\s*[:=]\s*(?:(?:bearer|basic|token)\s+)?){_VALUE}", re.IGNORECASE
)
_OPTION = re.compile(rf"((?<!\S)--?(?:[\w.-]+[-_.])?{_SECRET}\s+){_VALUE}", re.IGNORECASE)
_BEARER = re.compile(r"(\bbearer\s+)([\w.~+/=-]+)", re.IGNORECASE)
_KEYS = re.compile(r"()\b((?:sk-|pk-|hf_|ghp_|gho_|github_pat_|xox[a-z]-)[\w-]{10,})")
_USER = re.compile(r"(?<=://)[^\s/?#\"'<>]*@")
_SECRET_KEY = re.compile(rf"(?:^|[^a-z])(?:api|access|auth)?{_SECRET}$", re.IGNORECASE)
# keys of special tokens of a tokenizer, whose values are not secrets
_SPECIAL_KEY = re.compile(r"^(?:bos|eos|pad|unk|sep|cls|mask)_token$")
_SPECIAL = re.compile(r"[<\[].*[>\]]", re.DOTALL)  # matches the values of other special tokens, such as image_token
_ASKS_SECRET = re.compile(rf"--?(?:[\w.-]+[-_.])?{_SECRET}", re.IGNORECASE)
_TEMPLATE = "chat_template"  # key whose value is never changed, because the model needs it

_NAME = r"[^\s/\"'`<>|,;:()\[\]{}]+"
_WHOLE = re.compile(r"(?:file:/|[a-z][a-z\d+.-]*:///|~[\w.-]*/|\.\./|//|/[^/]+/)[^\n]*", re.IGNORECASE)
_PLACES = (
    r"(?:[a-z][a-z\d+.-]*://)?(?:KNOWN)(?![\w-])(?:/NAME)*/?",
    r"(?:file:(?://[\w.-]*)?|[a-z][a-z\d+.-]*://)(?=/)(?:/+NAME)+/?",  # the URL of a file
    r"(?P<address>[a-z][a-z\d+.-]*://[^\s\"'`<>,]*)",
    r"(?<![\w.@+/~-])~[\w.-]*(?:/NAME)+/?",
    r"(?<![\w.@+/~-])(?:\.\./)+(?:NAME/)*NAME/?",
    # an absolute path, also directly after an option as in -I/home/me/x
    r"(?:(?<![\w.@+/~)-])|(?<=(?<!\w)-[A-Za-z]))/{1,2}NAME(?:/NAME)+/?",
)


class Cleaner:
    """Removes secrets and paths from texts, commands and nested JSON values.

    Args:
        known: absolute paths of folders that are recognised anywhere in a text, even if they contain spaces.
    """

    def __init__(self, known: Sequence[str] = ()) -> None:
        folders = sorted({folder.rstrip("/") for folder in known if folder.rstrip("/")[1:]}, key=len, reverse=True)
        literal = "|".join(map(re.escape, folders)) or r"(?!)"
        self._path = re.compile(
            "|".join(_PLACES).replace("NAME", _NAME).replace("KNOWN", literal.replace("NAME", "N[A]ME")), re.IGNORECASE
        )

    def text(self, text: str) -> str:
        """Returns ``text`` with secrets masked and with each path replaced by its last component."""
        text = _USER.sub("", text)
        for pattern in (_OPTION, _NAMED, _BEARER, _KEYS):
            text = pattern.sub(_masked, text)
        return self._path.sub(_last, text)

    def value(self, value: Any, key: str = "") -> Any:
        """Returns a copy of a JSON value without secrets and paths. A text that begins like a path counts as a single
        path, even if the text contains spaces.

        Args:
            key: the name under which the value is stored. A name such as ``api_key`` marks the value as a secret.
        """
        if isinstance(value, Mapping):
            return {
                self.text(name) if isinstance(name, str) else name: self.value(it, str(name))
                for name, it in value.items()
            }
        if isinstance(value, list | tuple):
            return [
                MASK if place and _asks(value[place - 1]) and isinstance(it, str) else self.value(it, key)
                for place, it in enumerate(value)
            ]
        if _secret(key, value):
            return MASK
        if not isinstance(value, str) or key == _TEMPLATE:
            return value
        text = self.text(value) if "://" in value and not _WHOLE.match(value) else value
        return self.text(Path(text.rstrip("/")).name if _WHOLE.fullmatch(text) else text)

    def command(self, command: str) -> str:
        """Returns a command line without secrets, paths, and overrides that do not change what the run computes (such
        as its name). A value that begins like a path counts as a single path, even if it contains spaces.
        """
        try:
            words = shlex.split(command)
        except ValueError:
            return self.text(command)
        kept = [word for word in words if "=" not in word or not shown_only(word.partition("=")[0])]
        cleaned = [MASK if place and _asks(kept[place - 1]) else self._word(word) for place, word in enumerate(kept)]
        return shlex.join(cleaned)

    def _word(self, word: str) -> str:
        key, equals, value = word.partition("=")
        if not equals:
            return str(self.value(word))
        if value[:1] == "[" and value[-1:] == "]" and not set("[]{}") & set(value[1:-1]):
            items = [item.strip().strip("\"'") for item in value[1:-1].split(",")]
            return f"{self.text(key)}=[{','.join(map(str, self.value(items, key)))}]"
        return f"{self.text(key)}={self.value(value, key)}"


def cleaner(folder: Path) -> Cleaner:
    """Returns a cleaner that knows the home, working and run folders, and the ``paths`` of the run's configuration."""
    loaded = yaml.safe_load((folder / RECORD).read_text(encoding="utf-8")) if (folder / RECORD).is_file() else {}
    paths = loaded.get("paths") if isinstance(loaded, dict) else None
    places = [it for it in paths.values() if isinstance(it, str)] if isinstance(paths, dict) else []
    known = [str(Path.home()), str(Path.cwd()), str(folder.absolute()), str(folder.resolve()), *places]
    return Cleaner([place for place in known if place.startswith("/")])


def _secret(key: str, value: Any) -> bool:
    if value is None or isinstance(value, bool) or not _SECRET_KEY.search(key):
        return False
    if _SPECIAL_KEY.match(key.rpartition(".")[2]):
        return False
    return not (isinstance(value, str) and _SPECIAL.fullmatch(value))


def _asks(word: Any) -> bool:
    return isinstance(word, str) and bool(_ASKS_SECRET.fullmatch(word))


def _masked(found: re.Match[str]) -> str:
    quote = found[2][0] if found[2][0] in "\"'" else ""
    return f"{found[1]}{quote}{MASK}{quote}"


def _last(found: re.Match[str]) -> str:
    if found["address"]:
        return found[0]
    return Path(found[0].removeprefix("file:").rstrip("/")).name
