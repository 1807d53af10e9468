"""Checks that a tokenizer fits the model's weights, restores encoded texts, and encodes any text in limited time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from turnwise.models.check_weights import WeightsError, found, read_json

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_TRIED = "open door 1204 and go to room 35 or 6789"  # text that every working tokenizer encodes and decodes correctly
_SECONDS = 4  # limit of CPU time in seconds for all texts of one trial
_PATIENCE = 60  # seconds of wall-clock time after which a trial is stopped, in case it gets no CPU time
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_KNOWN = {  # patterns that always match within limited time: those of the shipped base policies, of Qwen and of Llama
    r"\n| ?\p{N}{1,2}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s",
    _WORD + r"\p{N}" + _REST,
    _WORD + r"\p{N}{1,3}" + _REST,
}
_TRIAL = """
import json, resource, sys
given = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (given["seconds"], given["seconds"]))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_str(json.dumps(given["tokenizer"]))
for text in given["texts"]:
    tokenizer.encode(text)
"""


def check_vocabulary(tokenizer: Any, rows: int) -> None:
    """Checks that a model's embedding, which has ``rows`` rows, has a row for every token id of the tokenizer.

    Raises:
        WeightsError: a token id has no row.
    """
    highest = max(tokenizer.get_vocab().values(), default=-1)
    if not 0 <= highest < rows:
        raise WeightsError(
            f"the tokenizer has token ids up to {highest}, but the model's embedding has only {rows} rows"
        )


def check_special(model: str | Path, rows: int) -> None:
    """Checks that a model's embedding has a row for each special token id in the model's configuration files.

    ``rows`` is the number of rows of the embedding. A padding id may be -1, which means that there is no padding token.

    Raises:
        WeightsError: a special token id has no row.
    """
    for name in ("config.json", "generation_config.json"):
        if (file := found(model, name)) is None:
            continue
        about = read_json(file)
        for part in [about, *(value for value in about.values() if isinstance(value, Mapping))]:
            for key in _TOKENS:
                given = part.get(key)
                for number in given if isinstance(given, list) else [given]:
                    whole_number = isinstance(number, int) and not isinstance(number, bool) and number < rows
                    least = -1 if key == "pad_token_id" else 0
                    if number is not None and not (whole_number and number >= least):
                        raise WeightsError(
                            f"{name} has {key}={given!r}, but the model's embedding has only {rows} rows"
                        )


def check_patterns(model: str | Path) -> None:
    """Checks that the regular expressions in a model's ``tokenizer.json`` are matched within limited time.

    Matching a regular expression may take practically forever and cannot be interrupted. So expressions that are not in
    ``_KNOWN`` are tried in another process, on long repetitions of each character in the expressions and of some other
    characters.

    Raises:
        WeightsError: matching took too long or failed, the tokenizer splits texts at random (dropout), or two added
            tokens have the same id.
    """
    file = found(model, "tokenizer.json")
    about = read_json(file) if file is not None else {}
    merges = about.get("model")
    if isinstance(merges, Mapping) and merges.get("dropout"):
        raise WeightsError(
            f"tokenizer.json has dropout={merges['dropout']!r}, which splits a text differently each time; set "
            "it to null"
        )
    added = [token.get("id") for token in about.get("added_tokens") or () if isinstance(token, Mapping)]
    if len(set(added)) < len(added):
        raise WeightsError("tokenizer.json gives two added tokens the same id")
    parts = {key: about.get(key) for key in ("normalizer", "pre_tokenizer")}
    patterns = set(_patterns(parts)) - _KNOWN
    if not patterns:
        return
    letters = sorted({*"aA0 \n.'_é中", *(letter for pattern in patterns for letter in pattern[:200])})
    ends = ("", "\0", "\0" + "".join(letters))  # some patterns are slow only if a repetition ends in another character
    texts = [run + end for letter in letters for run in (letter * 30, letter * 2000) for end in ends]
    plain = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}}
    given = {"seconds": _SECONDS, "tokenizer": {**plain, **parts}, "texts": texts}
    try:
        ended = subprocess.run(
            [sys.executable, "-c", _TRIAL],
            check=False,
            input=json.dumps(given),
            text=True,
            capture_output=True,
            timeout=_PATIENCE,
        ).returncode
    except subprocess.TimeoutExpired:
        ended = -1
    if ended:
        why = f"took more than {_SECONDS} s" if ended < 0 else "failed"
        raise WeightsError(
            f"tokenizer.json splits or replaces text by a pattern ({min(patterns, key=len)[:60]!r}), which {why} on "
            "texts of 2,000 characters"
        )


def _patterns(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        if isinstance(part.get("Regex"), str):
            yield part["Regex"]
        for value in part.values():
            yield from _patterns(value)
    elif isinstance(part, list):
        for value in part:
            yield from _patterns(value)


def check_tokenizer(tokenizer: Any) -> None:
    """Checks that a tokenizer encodes and decodes an ordinary text correctly.

    Raises:
        WeightsError: the decoded text differs from the original, as with missing or damaged files, or the end-of-turn
            token is an ordinary word.
    """
    end = tokenizer.eos_token
    if isinstance(end, str) and end.strip("\u0120\u2581 ").isalnum():  # without characters that mark a space
        raise WeightsError(f"the tokenizer's eos_token is the ordinary word {end!r}, which would end turns too early")
    ids = tokenizer.encode(_TRIED, add_special_tokens=False)
    back = tokenizer.decode(ids[: 10 * len(_TRIED)], clean_up_tokenization_spaces=False)
    if back.lower().split() != _TRIED.split():
        raise WeightsError(
            f"the tokenizer's files are missing or damaged: it encodes and decodes the text {_TRIED!r} as {back[:60]!r}"
        )
