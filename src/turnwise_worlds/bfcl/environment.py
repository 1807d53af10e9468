"""``env=bfcl``: multi-turn function calling, with the benchmark's public tasks or generated ones."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

from pydantic import PositiveInt

from turnwise.data.tool_schema import name_of
from turnwise.data.toolcalls import Format
from turnwise.env import first_tasks
from turnwise.types import Task
from turnwise_worlds.bfcl.apis import (
    SUBSETS,
    Apis,
    announcement,
    bfcl_entries,
    read_api_call,
    root,
    tools_of_class,
)
from turnwise_worlds.bfcl.generated_tasks import TinyTasks
from turnwise_worlds.tool_dialogues import DialogueEnv, DialogueProblem, UserTurn

NO_FUNCTION = "None of the functions that I have does this."
NO_VALUE = "A value that this needs was not given. What is it?"
UNSEEN_PAIRS = (  # pairs of APIs; the 20 of 200 dialogues that combine such a pair are kept out of training
    {"TicketAPI", "VehicleControlAPI"},
    {"MathAPI", "TravelAPI"},
    {"MathAPI", "TradingBot"},
    {"GorillaFileSystem", "TicketAPI"},
    {"MathAPI", "VehicleControlAPI"},
)
SEEN_SHARE = 20  # number of dialogues in the split seen; they are drawn from the dialogues without an unseen pair


@dataclass(frozen=True)
class BfclTasks:
    """The public multi-turn tasks of BFCL v4. All variants of a dialogue are in one split. ``unseen`` has the 20
    dialogues that combine a pair of ``UNSEEN_PAIRS``, ``seen`` 20 others, ``train`` the remaining 160.
    """

    subsets: tuple[str, ...] = SUBSETS
    whole: bool = False  # whether no dialogue is for training, and half of them are ``seen`` and half ``unseen``

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        whole: dict[str, Sequence[int]] = {"train": [], "seen": range(0, 200, 2), "unseen": range(1, 200, 2)}
        numbers = (whole if self.whole else _splits())[split]
        names = [f"multi_turn_{subset}_{number}" for number in numbers for subset in self.subsets]
        chosen = first_tasks(names, count, f"split {split} of the public tasks", f"{seed}/bfcl")
        return [Task("bfcl", name, split, {"entry": name}, subset_of(name)) for name in chosen]

    def problem(self, task: Task) -> DialogueProblem:
        return _public_problem(str(task.data["entry"]))


@lru_cache(maxsize=800)
def _public_problem(name: str) -> DialogueProblem:
    entry = bfcl_entries(subset_of(name))[name]
    classes = tuple(entry["involved_classes"])
    everything = [tool for name in classes for tool in tools_of_class(name)]
    held = {int(turn): set(names) for turn, names in entry.get("missed_function", {}).items()}
    hidden = set().union(*held.values())
    shown = tuple(tool for tool in everything if name_of(tool) not in hidden)
    tools_of = {turn: tuple(tool for tool in everything if name_of(tool) in names) for turn, names in held.items()}
    unable = NO_FUNCTION if held else NO_VALUE
    turns = []
    for at, (messages, truth) in enumerate(zip(entry["question"], entry["ground_truth"], strict=True)):
        user = "\n".join(message["content"] for message in messages)
        if at in tools_of:
            functions = json.dumps([tool["function"] for tool in tools_of[at]])
            user = f"{functions}\n{announcement()}"
        calls = tuple(read_api_call(source, classes) for source in truth)
        turns.append(UserTurn(user, calls, "" if calls else unable))
    world = partial(Apis, classes, entry["initial_config"], subset_of(name) == "long_context")
    return DialogueProblem(world, tuple(turns), shown, tools_of)


def subset_of(name: str) -> str:
    return name.removeprefix("multi_turn_").rpartition("_")[0]


@lru_cache(maxsize=1)
def _splits() -> dict[str, Sequence[int]]:
    classes = {
        int(name.rpartition("_")[2]): set(entry["involved_classes"]) for name, entry in bfcl_entries("base").items()
    }
    unseen = [number for number, names in classes.items() if any(pair <= names for pair in UNSEEN_PAIRS)]
    others = [number for number in classes if number not in unseen]
    seen = sorted(random.Random("bfcl/seen").sample(others, SEEN_SHARE))
    return {"train": [number for number in others if number not in seen], "seen": seen, "unseen": unseen}


@dataclass(eq=False)
class BfclEnv(DialogueEnv):
    """The policy fulfils requests with calls of simulated APIs. ``conf/env/bfcl.yaml`` explains the arguments."""

    name = "bfcl"

    horizon: PositiveInt | None = None  # type: ignore[assignment] # never None after construction, nor is the format
    format: Format | None = None  # type: ignore[assignment]
    level: Literal["tiny", "public", "whole"] = "tiny"
    subsets: Sequence[str] = SUBSETS

    def __post_init__(self) -> None:
        if not self.subsets or len(set(self.subsets) & set(SUBSETS)) < len(self.subsets):
            raise ValueError(f"subsets: name some of {', '.join(SUBSETS)}, each once, got {list(self.subsets)}")
        self.brief = self.level == "tiny"
        usual: tuple[int, Format] = (16, "bfcl_python") if self.brief else (60, "hermes")
        self.horizon, self.format = self.horizon or usual[0], self.format or usual[1]
        self.source = TinyTasks() if self.brief else BfclTasks(tuple(self.subsets), self.level == "whole")
        super().__post_init__()

    def ready(self) -> None:
        root()
