"""Our BFCL check against the benchmark's own, on mutated ground truths: the same verdict, for the same reason.

TURNWISE_BFCL_MUTANTS sets how many mutants of each of the 800 tasks are judged (7).
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from importlib import import_module

import pytest

pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed; `make bfcl` does it")

from turnwise.types import Task, ToolCall
from turnwise_worlds.bfcl.apis import SUBSETS, Apis, api_class, bfcl_entries, owners
from turnwise_worlds.bfcl.environment import BfclTasks
from turnwise_worlds.tool_dialogues import ANSWERS, EMPTY, STATE, DialogueReference

MUTANTS = int(os.environ.get("TURNWISE_BFCL_MUTANTS", "7"))
REASONS = {
    None: "",
    "multi_turn:empty_turn_model_response": EMPTY,
    "multi_turn:instance_state_mismatch": STATE,
    "multi_turn:execution_response_mismatch": ANSWERS,
}
EVAL = "bfcl_eval.eval_checker.multi_turn_eval."


@pytest.fixture
def official(monkeypatch, tmp_path):
    """(entry, turns) -> what the benchmark's checker finds wrong; what it leaves in its module's globals is removed."""
    monkeypatch.setenv("BFCL_PROJECT_ROOT", str(tmp_path))
    checker, utils = import_module(EVAL + "multi_turn_checker"), import_module(EVAL + "multi_turn_utils")
    defaults = api_class("TwitterAPI").post_tweet

    def judge(entry, turns):
        defaults.__defaults__ = ([], [])  # `mention` of an earlier check may have written into them
        said = [[[written(call) for call in step] for step in turn] for turn in turns]
        found = checker.multi_turn_checker(said, entry["ground_truth"], entry, "", "mutant")
        for name in [name for name in vars(utils) if name.endswith("_instance")]:
            delattr(utils, name)
        return REASONS[found.get("error_type")]

    yield judge
    defaults.__defaults__ = ([], [])


def first_fault(reference, turns):
    """The first fault that our check finds in the replies, each a list of calls, to all messages of the user."""
    world, seen = reference.start.fork(), []
    for at, replies in enumerate(turns):
        made = [call for reply in replies for call in reply]
        seen += [world.call(call) for call in made]
        if fault := reference.fault(at, world, seen, bool(made)):
            return fault
    return ""


def written(call):
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"


def mutant(turns, rng, others):
    """The turns with one to three changes of the kinds that models make."""
    turns = [list(turn) for turn in turns]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(turns))
        calls = turns[at]
        kind = rng.choice(["drop", "double", "swap", "value", "lose", "name", "move", "other", "nothing", "look"])
        place = rng.randrange(len(calls)) if calls else 0
        if kind in ("other", "look"):
            call = (
                rng.choice(others) if kind == "other" else ToolCall(rng.choice(["ls", "pwd", "get_account_info"]), {})
            )
            calls.insert(rng.randint(0, len(calls)), call)
        elif kind == "nothing" and rng.random() < 0.3:
            turns[at] = []
        elif not calls or kind == "nothing":
            continue
        elif kind == "drop":
            del calls[place]
        elif kind == "double":
            calls.insert(place, calls[place])
        elif kind == "swap":
            rng.shuffle(calls)
        elif kind == "move":
            turns[rng.randrange(len(turns))].append(calls.pop(place))
        else:
            calls[place] = changed(calls[place], kind, rng)
    return [[[call] for call in calls] for calls in turns]


def changed(call, kind, rng):
    if kind == "name":
        return ToolCall(call.name + "s", call.arguments)
    if not call.arguments:
        return call
    key = rng.choice(sorted(call.arguments))
    rest = {name: value for name, value in call.arguments.items() if name != key}
    if kind == "lose":
        return ToolCall(call.name, rest)
    value = call.arguments[key]
    values = [None, "x", 0, 3.5, True, [], {"a": 1}, f"{value} ", value]
    return ToolCall(call.name, {**call.arguments, key: rng.choice(values)})


@pytest.mark.slow
def test_the_official_checker_agrees_on_every_mutant(official):
    source, verdicts = BfclTasks(), Counter()
    for subset in SUBSETS:
        for name, entry in bfcl_entries(subset).items():
            problem = source.problem(Task("bfcl", name, "train", {"entry": name}))
            reference = DialogueReference.of(problem)
            truth = [list(turn.calls) for turn in problem.turns]
            others = [call for turn in truth for call in turn]
            for number in range(MUTANTS):
                rng = random.Random(f"{name}/{number}")
                turns = mutant(truth, rng, others)
                found = official(entry, turns)
                assert first_fault(reference, turns) == found, (
                    name,
                    number,
                    json.dumps([[written(c) for [c] in t] for t in turns]),
                )
                verdicts[found] += 1
    assert sum(verdicts.values()) == 800 * MUTANTS
    assert min(verdicts[reason] for reason in REASONS.values()) > 20 * MUTANTS  # every verdict is common


def test_all_functions_of_the_documents_can_be_called():
    for name in ("GorillaFileSystem", "TravelAPI"):
        known = owners((name,))
        assert known and all(owner == name for owner in known.values())
        assert Apis((name,), {}).call(ToolCall("nothing", {})).startswith("Error during execution")
