"""The simulated APIs of one session: built, called, copied and compared without a module global.

Calls go to the methods with values that a parser read; nothing is evaluated. An answer has the text that the benchmark gives it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from decimal import localcontext
from functools import lru_cache
from random import Random
from typing import Any

from turnwise.envs.bfcl.package import api_class
from turnwise.types import ToolCall

FAILED = "Error during execution: "
MAX_DIGITS = 1000  # of a precision, and of the exponent of a whole number: beyond it one call could take hours
MAX_ENTRIES, MAX_LEVELS = (
    20_000,
    40,
)  # of a file system; copies of folders share their contents and would grow without end

_GROWS = {"cp", "mv", "mkdir", "touch"}


class Apis:
    """One live instance of each API.

    Args:
        classes: names of the APIs, in the task's order; of two functions of one name the later API's is meant.
        config: the state that each begins in.
        long_context: whether the APIs pad their data.
    """

    __slots__ = ("classes", "full", "instances")

    def __init__(self, classes: tuple[str, ...], config: Mapping[str, Any], long_context: bool = False) -> None:
        self.classes = classes
        self.full = False
        self.instances: dict[str, Any] = {}
        for name in classes:
            instance = api_class(name)()
            if hasattr(instance, "_load_scenario"):
                instance._load_scenario(deepcopy(config.get(name, {})), long_context=long_context)
            # A copy, because some scenarios refer to lists and objects of their module.
            self.instances[name] = deepcopy(instance)

    def fork(self) -> Apis:
        """Returns an independent copy."""
        twin = Apis.__new__(Apis)
        twin.classes, twin.full = self.classes, self.full
        twin.instances = deepcopy(self.instances)
        return twin

    def call(self, call: ToolCall) -> str:
        """Returns the text of the answer; whatever goes wrong is one too."""
        owner = owners(self.classes).get(call.name)
        if owner is None:
            return f"{FAILED}name {call.name!r} is not defined"
        if self.full and owner == "GorillaFileSystem":
            return f"{FAILED}the file system is full"
        if reason := _too_costly(call):
            return FAILED + reason
        method = getattr(self.instances[owner], call.name)
        try:
            given = deepcopy({**_lists(owner, call.name), **call.arguments})
            with _own_precision() if owner == "MathAPI" else nullcontext():
                return _shown(method(**given))
        except Exception as error:  # an API raises what it likes, and the benchmark shows it
            return f"{FAILED}{error}"
        finally:
            if owner == "GorillaFileSystem" and call.name in _GROWS:
                self.full = _overgrown(self.instances[owner].root)

    def same_state(self, other: Apis) -> bool:
        """Whether all public attributes are equal: the benchmark's comparison of states."""
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
        """:meth:`same_state`, and alike in what is hidden too: the working folder, the next random numbers."""
        return self.same_state(other) and all(
            _hidden(instance) == _hidden(other.instances[name]) for name, instance in self.instances.items()
        )


@lru_cache(maxsize=256)
def owners(classes: tuple[str, ...]) -> Mapping[str, str]:
    """Returns a mapping from public functions to the API that answers them."""
    return {
        method: name
        for name in classes
        for method, _ in inspect.getmembers(api_class(name), inspect.isfunction)
        if not method.startswith("_")
    }


@lru_cache(maxsize=1024)
def parameters(owner: str, method: str) -> tuple[inspect.Parameter, ...]:
    """Returns the parameters of an API's function, without the instance."""
    return tuple(inspect.signature(getattr(api_class(owner), method)).parameters.values())[1:]


@lru_cache(maxsize=1024)
def _lists(owner: str, method: str) -> Mapping[str, Any]:
    """Parameters whose default is a list or an object: one that all sessions would share and could change."""
    defaults = {parameter.name: parameter.default for parameter in parameters(owner, method)}
    return {name: deepcopy(default) for name, default in defaults.items() if isinstance(default, list | dict | set)}


def _shown(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except (TypeError, ValueError):
            return str(result)
    return str(result)


def _hidden(instance: Any) -> dict[str, Any]:
    found = {key: value for key, value in vars(instance).items() if key.startswith("_")}
    for key, value in found.items():
        if isinstance(value, Random):
            found[key] = value.getstate()
        elif key == "_current_dir":
            found[key] = instance.pwd()
    return found


@contextmanager
def _own_precision() -> Iterator[None]:
    """The mathematical functions set the precision of the whole process; it is put back."""
    import mpmath

    with localcontext(), mpmath.workdps(mpmath.mp.dps):
        yield


def _too_costly(call: ToolCall) -> str | None:
    given = call.arguments
    for name in ("precision", "decimal_places"):
        value = given.get(name)
        if isinstance(value, int | float) and abs(value) > MAX_DIGITS:
            return f"{name} must be at most {MAX_DIGITS}"
    base, exponent = given.get("base"), given.get("exponent")
    if isinstance(base, int) and isinstance(exponent, int) and abs(exponent) > MAX_DIGITS:
        return f"the exponent must be at most {MAX_DIGITS}"
    return None


def _overgrown(root: Any) -> bool:
    """Whether a file system, read as a tree, has too many entries or levels."""
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
