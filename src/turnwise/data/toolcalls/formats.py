"""Maps each text format of tool calls to its parser. A new format needs a file in this folder and an entry in
``PARSERS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from turnwise.data.toolcalls.bfcl_python import bfcl_python
from turnwise.data.toolcalls.hermes import hermes
from turnwise.data.toolcalls.llama_json import llama_json
from turnwise.data.toolcalls.parsing import Parser
from turnwise.data.toolcalls.qwen_xml import qwen_xml

Format = Literal["hermes", "qwen_xml", "llama_json", "bfcl_python"]

PARSERS: Mapping[str, Parser] = {
    "hermes": hermes,
    "qwen_xml": qwen_xml,
    "llama_json": llama_json,
    "bfcl_python": bfcl_python,
}


def parser_of(form: Format | None) -> Parser:
    """Returns the parser of a tool-call format, or raises ValueError if ``form`` is None."""
    if form is None:
        raise ValueError(f"format: the format of tool calls is unknown; set it to one of {', '.join(PARSERS)}")
    return PARSERS[form]
