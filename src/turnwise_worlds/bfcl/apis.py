"""The simulated APIs and the files of the package bfcl-eval."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from copy import copy, deepcopy
from decimal import localcontext
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from turnwise.data.tool_schema import json_schema, tool_of
from turnwise.errors import InputError
from turnwise.types import ToolCall
from turnwise_worlds.tool_dialogues import World
from turnwise_worlds.tool_environment import Tools

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


def root() -> Path:
    spec = find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise InputError(f"env=bfcl needs bfcl-eval, which is not installed here; {INSTALL}")
    return Path(spec.origin).parent


@lru_cache(maxsize=len(_MODULES))
def api_class(name: str) -> Any:
    root()
    try:
        module = import_module(f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{_MODULES[name]}")
    except ImportError as error:
        raise InputError(f"env=bfcl: an API of bfcl-eval cannot be imported ({error}); {INSTALL}") from error
    return getattr(module, name)


@lru_cache(maxsize=len(_MODULES))
def tools_of_class(name: str) -> Tools:
    functions = read_lines(root() / "data" / "multi_turn_func_doc" / f"{_MODULES[name]}.json")
    return tuple(tool_of(one["name"], one["description"], json_schema(one["parameters"])) for one in functions)


@lru_cache(maxsize=1)
def announcement() -> str:
    return str(import_module("bfcl_eval.constants.default_prompts").DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)


@lru_cache(maxsize=len(SUBSETS))
def bfcl_entries(subset: str) -> dict[str, dict[str, Any]]:
    """Returns the tasks of a subset of BFCL: id -> the benchmark's entry together with its ``ground_truth``."""
    name = f"BFCL_v4_multi_turn_{subset}.json"
    if subset not in SUBSETS:
        raise LookupError(f"BFCL has no file {name}")
    truths = {line["id"]: line["ground_truth"] for line in read_lines(root() / "data" / "possible_answer" / name)}
    return {line["id"]: {**line, "ground_truth": truths[line["id"]]} for line in read_lines(root() / "data" / name)}


def read_lines(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.strip()]
    except OSError as error:
        raise InputError(f"{path}: the installed bfcl-eval lacks this file ({error.strerror}); {INSTALL}") from error


FAILED = "Error during execution: "
# maximum precision (in digits) and maximum exponent in a call; a call with larger values could run for hours
MAX_DIGITS = 1000
# maximum number of entries and of levels of a file system; a few copies of folders could make it grow without end
MAX_ENTRIES, MAX_LEVELS = 20_000, 40

_GROWS = {"cp", "mv", "mkdir", "touch"}


class Apis(World):
    """The simulated APIs of one episode. Of two functions of the same name, that of the later class is called. With
    ``long_context``, data are padded as in BFCL's subset of this name.
    """

    def __init__(self, classes: tuple[str, ...], config: Mapping[str, Any], long_context: bool = False) -> None:
        self.classes = classes
        self.full = False
        self.instances: dict[str, Any] = {}
        for name in classes:
            instance = api_class(name)()
            if hasattr(instance, "_load_scenario"):
                instance._load_scenario(deepcopy(config.get(name, {})), long_context=long_context)
            # The instance is copied, because its initial state may refer to lists and objects of the API's module.
            self.instances[name] = deepcopy(instance)

    def fork(self) -> Apis:
        twin = copy(self)
        twin.instances = deepcopy(self.instances)
        return twin

    def call(self, call: ToolCall) -> str:
        owner = owners(self.classes).get(call.name)
        if owner is None:
            return f"{FAILED}name {call.name!r} is not defined"
        if self.full and owner == "GorillaFileSystem":
            return f"{FAILED}the file system is full"
        if reason := _too_costly(call):
            return FAILED + reason
        method = getattr(self.instances[owner], call.name)
        try:
            arguments = deepcopy({**_lists(owner, call.name), **call.arguments})
            with _own_precision() if owner == "MathAPI" else nullcontext():
                return _shown(method(**arguments))
        except Exception as error:  # an API may raise any exception, and the benchmark shows its text
            return f"{FAILED}{error}"
        finally:
            if owner == "GorillaFileSystem" and call.name in _GROWS:
                self.full = _overgrown(self.instances[owner].root)

    def same_state(self, other: Apis) -> bool:
        """Returns whether all public attributes of these APIs equal those of ``other``, as BFCL's own program does."""
        try:
            return all(
                getattr(instance, key) == value
                for name, instance in self.instances.items()
                for key, value in vars(other.instances[name]).items()
                if not key.startswith("_")
            )
        except (AttributeError, RecursionError):
            return False

    def same_place(self, other: Apis) -> bool:
        """Compares private attributes too, such as the working folder or a random generator."""
        return self.same_state(other) and all(
            _hidden(instance) == _hidden(other.instances[name]) for name, instance in self.instances.items()
        )


@lru_cache(maxsize=256)
def owners(classes: tuple[str, ...]) -> Mapping[str, str]:
    """Returns function's name -> API's name, for all public functions of the APIs ``classes``."""
    return {
        method: name
        for name in classes
        for method, _ in inspect.getmembers(api_class(name), inspect.isfunction)
        if not method.startswith("_")
    }


@lru_cache(maxsize=1024)
def parameters(owner: str, method: str) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(getattr(api_class(owner), method)).parameters.values())[1:]


def read_api_call(source: str, classes: tuple[str, ...]) -> ToolCall:
    """Returns the call in a Python expression, which is parsed and never executed."""
    node = ast.parse(source, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in owners(classes):
        raise ValueError(f"{source!r}: the text is not a call of a function of {', '.join(classes)}")
    names = [parameter.name for parameter in parameters(owners(classes)[node.func.id], node.func.id)]
    if len(node.args) > len(names):
        raise ValueError(f"{source!r}: the function has {len(names)} parameters")
    arguments = dict(zip(names[: len(node.args)], map(ast.literal_eval, node.args), strict=True))
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return ToolCall(node.func.id, arguments)


@lru_cache(maxsize=1024)
def _lists(owner: str, method: str) -> Mapping[str, Any]:
    """Returns copies of a function's defaults that a call could change. Otherwise all episodes would share them."""
    defaults = {parameter.name: parameter.default for parameter in parameters(owner, method)}
    return {name: deepcopy(default) for name, default in defaults.items() if isinstance(default, list | dict | set)}


def _shown(result: Any) -> str:
    with suppress(TypeError, ValueError):
        if isinstance(result, dict):
            return json.dumps(result)
    return str(result)


def _hidden(instance: Any) -> dict[str, Any]:
    return {
        key: value.getstate() if isinstance(value, Random) else instance.pwd() if key == "_current_dir" else value
        for key, value in vars(instance).items()
        if key.startswith("_")
    }


@contextmanager
def _own_precision() -> Iterator[None]:
    """Restores this process's numerical precision after the ``with`` block, because functions of MathAPI change it."""
    import mpmath

    with localcontext(), mpmath.workdps(mpmath.mp.dps):
        yield


def _too_costly(call: ToolCall) -> str | None:
    arguments = call.arguments
    for name in ("precision", "decimal_places"):
        value = arguments.get(name)
        if isinstance(value, int | float) and abs(value) > MAX_DIGITS:
            return f"{name} must be at most {MAX_DIGITS}"
    base, exponent = arguments.get("base"), arguments.get("exponent")
    if isinstance(base, int) and isinstance(exponent, int) and abs(exponent) > MAX_DIGITS:
        return f"the exponent must be at most {MAX_DIGITS}"
    return None


def _overgrown(root: Any) -> bool:
    seen, level = 0, [root]
    for _ in range(MAX_LEVELS):
        level = [item for folder in level for item in folder.contents.values()]
        seen += len(level)
        level = [item for item in level if hasattr(item, "contents")]
        if seen > MAX_ENTRIES:
            return True
        if not level:
            return False
    return True
