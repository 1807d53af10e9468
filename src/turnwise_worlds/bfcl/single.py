"""BFCL's single-turn tasks in Python, one request and one reply, scored by bfcl-eval's own checker of calls."""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

from turnwise.env import first_tasks
from turnwise.types import Task, ToolCall
from turnwise_worlds.bfcl.apis import read_lines, root, tool_of
from turnwise_worlds.dialogues import DialogueProblem, UserTurn

NON_LIVE = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance")
CATEGORIES = NON_LIVE + LIVE


@cache
def checker() -> Any:
    """Returns bfcl-eval's ``ast_checker``. Its module imports the clients of all models that the benchmark has been run
    on, only to know which of them cannot write dots in names; a stand-in, which says that none does, takes their place.
    """
    place = "bfcl_eval.constants.model_config"
    stand_in: Any = ModuleType(place)
    stand_in.MODEL_CONFIG_MAPPING = defaultdict(lambda: SimpleNamespace(underscore_to_dot=False))
    before = sys.modules.get(place)
    sys.modules[place] = before or stand_in
    try:
        return import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker
    finally:
        if before is None:
            del sys.modules[place]


class Calls:
    """The calls that the policy has made. Nothing executes them."""

    def __init__(self, entry: Mapping[str, Any], calls: tuple[ToolCall, ...] = ()) -> None:
        self.entry, self.calls = entry, calls

    def call(self, call: ToolCall) -> str:
        self.calls += (call,)
        return ""

    def fork(self) -> Calls:
        return Calls(self.entry, self.calls)

    def same_state(self, other: Calls) -> bool:
        """Returns whether the checker finds the calls right. In ``live_relevance`` any call is."""
        category, possible = self.entry["category"], self.entry["possible"]
        if "relevance" in category:
            return bool(self.calls) == (category == "live_relevance")
        made = [{call.name: dict(call.arguments)} for call in self.calls]
        language = import_module("bfcl_eval.constants.enums").Language.PYTHON
        return bool(checker()(self.entry["function"], made, possible, language, category, "any")["valid"])

    def same_place(self, other: Calls) -> bool:
        return self.calls == other.calls


@cache
def entries(category: str) -> Mapping[str, dict[str, Any]]:
    name = f"BFCL_v4_{category}.json"
    answers = root() / "data" / "possible_answer" / name
    possible = {line["id"]: line["ground_truth"] for line in read_lines(answers)} if answers.exists() else {}
    questions = read_lines(root() / "data" / name)
    return {line["id"]: {**line, "category": category, "possible": possible.get(line["id"])} for line in questions}


@dataclass(frozen=True)
class SingleTasks:
    """Half of the tasks are ``seen`` and half ``unseen``, because none is for training."""

    categories: tuple[str, ...] = CATEGORIES

    def __post_init__(self) -> None:
        if set(self.categories) - set(CATEGORIES):
            raise ValueError(f"subsets: name some of {', '.join(CATEGORIES)}, got {list(self.categories)}")

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        names = [(name, category) for category in self.categories for name in entries(category)]
        found = {"train": [], "seen": names[::2], "unseen": names[1::2]}[split]
        random.Random(f"{seed}/bfcl single").shuffle(found)
        chosen = first_tasks(found, count, f"split {split} of the single-turn tasks")
        return [Task("bfcl", f"single/{name}", split, {"entry": name, "category": c}, c) for name, c in chosen]

    def problem(self, task: Task) -> DialogueProblem:
        entry = entries(str(task.data["category"]))[str(task.data["entry"])]
        user = "\n".join(message["content"] for messages in entry["question"] for message in messages)
        calls = tuple(
            ToolCall(name, _arguments(given)) for one in entry["possible"] or () for name, given in one.items()
        )
        if entry["category"] == "live_relevance":
            calls = (ToolCall(entry["function"][0]["name"], {}),)
        unable = "" if calls else "None of the functions does this."
        tools = tuple(map(tool_of, entry["function"]))
        return DialogueProblem(partial(Calls, entry), (UserTurn(user, calls, unable),), tools, one_reply=True)


def _arguments(given: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Returns the first possible value of each argument that may not be left out."""
    return {name: _first(values[0]) for name, values in given.items() if "" not in values}


def _first(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _arguments(value)
    return [_first(item) for item in value] if isinstance(value, list) else value
