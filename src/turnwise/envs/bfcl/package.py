"""Reads the tasks, function descriptions and API classes of the installed package bfcl-eval.

The package's settings module is never imported, because its import would create folders in the package.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turnwise.data.tool_schema import json_schema
from turnwise.envs.tool_messages import Tools
from turnwise.errors import InputError

INSTALL = "install bfcl-eval with `make bfcl`"
SUBSETS = ("base", "miss_func", "miss_param", "long_context")

_MODULES = {  # class of an API -> the name of its module, and of the file that describes its functions
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TwitterAPI": "posting_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "VehicleControlAPI": "vehicle_control",
}


class MissingBfclError(InputError):
    """bfcl-eval, or a library that its APIs import, is not installed."""


def root() -> Path:
    """Returns the folder of the installed package bfcl-eval.

    Raises:
        MissingBfclError: bfcl-eval is not installed.
    """
    spec = find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise MissingBfclError(f"env=bfcl needs bfcl-eval, which is not installed here; {INSTALL}")
    return Path(spec.origin).parent


@lru_cache(maxsize=len(_MODULES))
def api_class(name: str) -> Any:
    """Returns the class of a simulated API.

    Raises:
        ValueError: there is no API of this name.
        MissingBfclError: bfcl-eval, or a library that the API imports, is not installed.
    """
    if name not in _MODULES:
        raise ValueError(f"there is no API {name!r}; choose one of {', '.join(_MODULES)}")
    root()
    try:
        module = import_module(f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{_MODULES[name]}")
    except ImportError as error:
        raise MissingBfclError(f"env=bfcl: an API of bfcl-eval cannot be imported ({error}); {INSTALL}") from error
    return getattr(module, name)


@lru_cache(maxsize=len(_MODULES))
def tools_of_class(name: str) -> Tools:
    """Returns one tool definition for each function of an API, with the parameters as JSON Schema."""
    records = read_lines(root() / "data" / "multi_turn_func_doc" / f"{_MODULES[name]}.json")
    return tuple(
        {
            "type": "function",
            "function": {
                "name": record["name"],
                "description": record["description"],
                "parameters": json_schema(record["parameters"]),
            },
        }
        for record in records
    )


@lru_cache(maxsize=1)
def announcement() -> str:
    """Returns the user message with which BFCL tells the model that more functions are available from now on."""
    return str(import_module("bfcl_eval.constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)


@lru_cache(maxsize=len(SUBSETS))
def entries(subset: str) -> dict[str, dict[str, Any]]:
    """Returns the tasks of a subset of BFCL: id -> the benchmark's entry together with its ``ground_truth``.

    Raises:
        MissingBfclError: the package is not installed, or its version lacks the subset's file.
    """
    name = f"BFCL_v4_multi_turn_{subset}.json"
    try:
        questions = read_lines(root() / "data" / name)
        answers = read_lines(root() / "data" / "possible_answer" / name)
    except FileNotFoundError as error:
        raise MissingBfclError(
            f"{error.filename}: the installed version of bfcl-eval lacks this file; {INSTALL}"
        ) from error
    truths = {answer["id"]: answer["ground_truth"] for answer in answers}
    return {question["id"]: {**question, "ground_truth": truths[question["id"]]} for question in questions}


def read_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]
