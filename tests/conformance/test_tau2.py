"""Our scores of env=tau2 against the benchmark's own program, on its calls and on mutants of them: the same verdicts.

TURNWISE_TAU2_TASKS sets how many tasks of each domain are judged (4; 0 is all of them), and TURNWISE_TAU2_MUTANTS how many
mutants of each (4).
"""

from __future__ import annotations

import os
import random
from functools import lru_cache
from importlib import import_module

import pytest

from turnwise.types import ToolCall
from turnwise_worlds.tau2.domains import DOMAINS, SOLO, problem_of, task_records
from turnwise_worlds.tau2.session import ACTIONS, ASSERTIONS, DATABASE, SAID, Tau2Reference

TASKS = int(os.environ.get("TURNWISE_TAU2_TASKS", "4"))
MUTANTS = int(os.environ.get("TURNWISE_TAU2_MUTANTS", "4"))
PREFIX = "inspect_evals.tau2."

pytestmark = [pytest.mark.extra("tau2"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def files_are_read_once(monkeypatch):
    """The scorer loads the shipped database for every verdict; its values are the same each time, so its file is kept."""
    db = import_module(PREFIX + "environment.db")
    monkeypatch.setattr(db, "load_file", lru_cache(db.load_file))


def names(domain):
    known = sorted(task_records(domain))
    return random.Random(domain).sample(known, TASKS) if TASKS else known


def mutant(calls, rng, others):
    """The calls with up to three changes of the kinds that models make; the first mutant of a task has none."""
    calls = list(calls)
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice(["drop", "double", "shuffle", "value", "name", "other"])
        at = rng.randrange(len(calls)) if calls else 0
        if kind == "other" or not calls:
            calls.insert(at, rng.choice(others))
        elif kind == "drop":
            del calls[at]
        elif kind == "double":
            calls.insert(at, calls[at])
        elif kind == "shuffle":
            rng.shuffle(calls)
        elif kind == "name":
            calls[at] = ToolCall(calls[at].name + "_all", calls[at].arguments)
        elif calls[at].arguments:
            key, donor = rng.choice(sorted(calls[at].arguments)), rng.choice(others)
            calls[at] = ToolCall(calls[at].name, {**calls[at].arguments, key: donor.arguments.get(key, "x")})
    return calls


def plain(world):
    """The tools of airline or retail over a world's records, every one of them in an ordinary dictionary."""
    tools = world.opened()
    database = type(tools.db).model_construct(
        **{field: dict(getattr(tools.db, field).look()) for field in type(tools.db).model_fields}
    )
    from inspect_ai.util import Store

    made = type(tools)(instance="predicted", store=Store())
    made.db = database
    return made


def official(problem, name, world, calls, said):
    """What the benchmark's scorers find wrong, in the order of ours."""
    from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, ModelName
    from inspect_ai.scorer import Target
    from inspect_ai.solver import TaskState
    from inspect_ai.tool import ToolCall as OfficialCall

    common = import_module(PREFIX + "common.scorer")
    task = import_module(PREFIX + "data_model.tasks").Task.model_validate(task_records(problem.domain)[name])
    metadata = import_module(PREFIX + "common.metadata").Tau2MetaData(instance="agent", task=task)
    made = [OfficialCall(id=str(i), function=call.name, arguments=dict(call.arguments)) for i, call in enumerate(calls)]
    stored = import_module(PREFIX + "common.agents").StoredAgentState(instance="agent", store=world.store)
    stored.messages = [ChatMessageAssistant(content="", tool_calls=made)]
    # In solo mode the agent makes the customer's calls as well: they stand where the scorer looks for each side's.
    both = [ChatMessageAssistant(content="", tool_calls=made), *(ChatMessageUser(content=text) for text in said)]
    state = TaskState(ModelName("mock/m"), name, 0, "", both, metadata=metadata.model_dump())

    def verdict(scorer):
        def run():
            try:
                scorer(state, Target("")).send(None)
            except StopIteration as stop:
                return stop.value.value == "C"
            raise AssertionError("the scorer waits")

        return world.within(run)

    if problem.domain in SOLO:
        assertions = import_module(PREFIX + "telecom.scorer").env_assertions()
        checks = {ACTIONS: common.evaluate_required_actions(check_reward_basis=True), ASSERTIONS: assertions}
    else:
        database = common.db_match(domain=problem.domain, testing_mock_predicted_db=plain(world))
        checks = {DATABASE: database, SAID: common.score_communicated_info()}
    return next((fault for fault, scorer in checks.items() if not verdict(scorer)), "")


@pytest.mark.parametrize("domain", DOMAINS)
def test_our_verdicts_are_the_benchmarks(domain):
    rng = random.Random(f"tau2/{domain}")
    chosen = names(domain)
    others = [gold.call for name in chosen for gold in problem_of(domain, name).gold]
    faults = set()
    for name in chosen:
        problem = problem_of(domain, name)
        reference = Tau2Reference.of(problem)
        for number in range(1 + MUTANTS):
            calls = [gold.call for gold in problem.gold]
            calls = mutant(calls, rng, others) if number else calls
            said = [f"{info.title()}." for info in problem.said if not number or rng.random() < 0.8]
            world = problem.start.fork()
            for call in calls:
                world.call(call)
            ours = reference.fault(world, calls, said)
            assert ours == official(problem, name, world, calls, said), (name, calls, said)
            assert number or not ours
            faults.add(ours)
    assert faults >= ({"", ACTIONS, ASSERTIONS} if domain in SOLO else {"", DATABASE})
