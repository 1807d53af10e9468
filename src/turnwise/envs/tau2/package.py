"""Reads tau2-bench (arXiv:2506.07982; MIT) from the installed package inspect-evals.

The package's tools are coroutines, which find their databases in the store (a dictionary of inspect-ai) of the running
context.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turnwise.envs.tool_messages import Tools
from turnwise.errors import InputError

INSTALL = "install the required versions with `make tau2`"
DOMAINS = ("airline", "retail", "telecom")
SOLO = ("telecom",)  # domains with a ticket and without a user; the agent itself operates the customer's phone
FREE: Mapping[str, tuple[str, ...]] = {  # tasks that the benchmark counts as solved if the agent does and says nothing
    "airline": tuple(map(str, (0, 1, 4, 5, 6, 10, 13, 26, 28, 31, 34, 36, 41, 43, 45, 46, 47, 48, 49))),
    "retail": tuple(map(str, (10, 12, 25, 50, 57, 65, 105))),
    "telecom": (),
}

_LISTS = {  # domain -> (module, function) for each list of the domain's tools
    "airline": (("airline.tools", "all_airline_tools"),),
    "retail": (("retail.tools", "all_retail_tools"),),
    "telecom": (("telecom.tools", "all_telecom_agent_tools"), ("telecom.user_tools", "all_telecom_user_tools")),
}
_OPENERS = {  # domain -> (module, function) that puts the domain's databases into the current store
    "airline": ("airline.AirlineAgentTools", "get_airline_tools"),
    "retail": ("retail.tools", "get_retail_tools"),
    "telecom": ("telecom.environment", "get_environment"),
}
_POLICIES = {
    "airline": ("policy.txt",),
    "retail": ("policy.txt",),
    "telecom": ("main_policy_solo.txt", "tech_support_manual.txt"),
}

_IMPORTING = threading.Lock()  # modules of inspect-ai import each other, so two threads must not import them at once


class MissingTau2Error(InputError):
    """The package inspect-evals, or a library that it imports, is not installed."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a domain."""

    tools: Tools
    functions: Mapping[str, Callable[..., Coroutine[Any, Any, Any]]]  # name of a tool -> the benchmark's function


def root() -> Path:
    """Returns the folder of tau2-bench in the installed package inspect-evals.

    Raises:
        MissingTau2Error: the package is not installed.
    """
    missing = [name for name in ("inspect_evals", "inspect_ai") if find_spec(name) is None]
    if missing:
        names = " and ".join(name.replace("_", "-") for name in missing)
        raise MissingTau2Error(f"env=tau2 needs packages that are not installed here: {names}; {INSTALL}")
    spec = find_spec("inspect_evals")
    places = list(spec.submodule_search_locations or ()) if spec else []
    found = next((Path(place) / "tau2" for place in places if (Path(place) / "tau2" / "data").is_dir()), None)
    if found is None:
        raise MissingTau2Error(f"env=tau2: the installed version of inspect-evals has no tau2 data; {INSTALL}")
    return found


def of_package(module: str, name: str) -> Any:
    """Returns an object of the benchmark's modules, for example ``of_package("retail.tools", "get_retail_tools")``.

    Raises:
        MissingTau2Error: the object cannot be imported.
    """
    root()
    try:
        with _IMPORTING:
            return getattr(import_module(f"inspect_evals.tau2.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise MissingTau2Error(f"env=tau2: the installed inspect-evals cannot be used ({error}); {INSTALL}") from error


@lru_cache(maxsize=len(DOMAINS))
def toolbox(domain: str) -> Toolbox:
    """Returns the tools of a domain. For telecom, these include the tools of the customer's phone.

    Raises:
        MissingTau2Error: the tools cannot be imported.
    """
    makers = [maker for place in _LISTS[domain] for maker in of_package(*place)]
    from inspect_ai.tool import ToolDef

    functions = {(definition := ToolDef(made)).name: (made, definition) for made in (maker() for maker in makers)}
    tools = tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": definition.description,
                "parameters": definition.parameters.model_dump(exclude_none=True),
            },
        }
        for name, (_, definition) in functions.items()
    )
    return Toolbox(tools, {name: made for name, (made, _) in functions.items()})


def opener(domain: str) -> Callable[[], Any]:
    """Returns the benchmark's function that puts the databases of a domain into the store of the running context.

    The function returns the object that runs the domain's tools.
    """
    found: Callable[[], Any] = of_package(*_OPENERS[domain])
    return found


@lru_cache(maxsize=len(DOMAINS))
def policy(domain: str) -> str:
    """Returns the text of the company's rules, which the benchmark calls its policy.

    For telecom, the text consists of the policy of solo mode and the technical support manual.
    """
    return "\n\n".join(_text(domain, name).strip() for name in _POLICIES[domain])


@lru_cache(maxsize=len(DOMAINS))
def splits(domain: str) -> Mapping[str, tuple[str, ...]]:
    """Returns the task ids of a domain's base set: ``train`` or ``test`` -> ids."""
    shipped = json.loads(_text(domain, "split_tasks.json"))
    return {name: tuple(map(str, shipped[name])) for name in ("train", "test")}


@lru_cache(maxsize=len(DOMAINS))
def task_records(domain: str) -> Mapping[str, Mapping[str, Any]]:
    """Returns the tasks of the benchmark's base set in a domain: id of a task -> its record as JSON values."""
    named = {name for ids in splits(domain).values() for name in ids}
    found = {str(record["id"]): record for record in json.loads(_text(domain, "tasks.json"))}
    if lost := named - found.keys():
        raise MissingTau2Error(
            f"env=tau2: the domain {domain} has no task {min(lost)} in the installed inspect-evals; {INSTALL}"
        )
    return {name: record for name, record in found.items() if name in named}


def _text(domain: str, name: str) -> str:
    path = root() / "data" / "domains" / domain / name
    packed = path.with_name(f"{name}.gz")
    try:
        return gzip.decompress(packed.read_bytes()).decode() if packed.is_file() else path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingTau2Error(
            f"{path}: the file is missing from the installed version of inspect-evals; {INSTALL}"
        ) from error
