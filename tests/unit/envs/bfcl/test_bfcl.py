"""The benchmark's tasks and APIs: splits, ground truths, what leaks in the original and not here, and the verifier by hand."""

from __future__ import annotations

import decimal

import pytest

from turnwise.types import Task, ToolCall

pytest.importorskip("bfcl_eval", reason="bfcl-eval is not installed; `make bfcl` does it")

from turnwise_worlds.bfcl import BfclEnv
from turnwise_worlds.bfcl.apis import SUBSETS, Apis, bfcl_entries
from turnwise_worlds.bfcl.environment import UNSEEN_PAIRS, read_api_call, subset_of

COUNTS = {"train": 640, "seen": 80, "unseen": 80}


@pytest.fixture(scope="module")
def public():
    return BfclEnv(level="public", format="bfcl_python", kept=8)


def entry_task(name):
    return Task("bfcl", name, "train", {"entry": name})


def test_a_dialogue_and_its_variants_share_a_split(public):
    numbers = {}
    for split, count in COUNTS.items():
        tasks = public.tasks(split, count)
        assert len({task.id for task in tasks}) == count
        numbers[split] = {int(task.id.rpartition("_")[2]) for task in tasks}
        assert {subset_of(task.id) for task in tasks} == set(SUBSETS)
    assert [len(found) for found in numbers.values()] == [160, 20, 20]
    assert set().union(*numbers.values()) == set(range(200))
    needed = [set(bfcl_entries("base")[f"multi_turn_base_{number}"]["involved_classes"]) for number in numbers["train"]]
    assert not any(pair <= names for pair in UNSEEN_PAIRS for names in needed)


@pytest.mark.slow
def test_all_ground_truths_pass_through_our_environment(public):
    for split, count in COUNTS.items():
        for task in public.tasks(split, count):
            assert public.demonstrate(task).success, task.id


def test_a_truth_is_read_not_evaluated():
    assert read_api_call("sort('a.txt')", ("GorillaFileSystem",)) == ToolCall("sort", {"file_name": "a.txt"})
    for source in ("__import__('os').getcwd()", "sort(open('a'))", "nothing()", "1 + 1", "sort('a', 'b')"):
        with pytest.raises(ValueError, match=r".+"):
            read_api_call(source, ("GorillaFileSystem",))


def test_the_precision_of_the_process_stays():
    mpmath = pytest.importorskip("mpmath")
    before = decimal.getcontext().prec, mpmath.mp.dps
    apis = Apis(("MathAPI",), {})
    assert apis.call(ToolCall("logarithm", {"value": 8, "base": 2, "precision": 5})) == "{'result': mpf('3.0')}"
    assert "1.41" in apis.call(ToolCall("square_root", {"number": 2, "precision": 3}))
    assert (decimal.getcontext().prec, mpmath.mp.dps) == before


def test_calls_that_would_take_hours_are_refused():
    apis = Apis(("MathAPI",), {})
    for name, arguments in (
        ("power", {"base": 9, "exponent": 10**9}),
        ("logarithm", {"value": 2, "base": 3, "precision": 10**9}),
        ("round_number", {"number": 5, "decimal_places": -(10**9)}),
    ):
        assert "at most 1000" in apis.call(ToolCall(name, arguments))


def test_copies_of_folders_cannot_grow_without_end():
    """Copies share their contents, so that moving each into the first doubles the tree."""
    apis = Apis(("GorillaFileSystem",), {"GorillaFileSystem": {"root": {"r": {"type": "directory", "contents": {}}}}})
    apis.call(ToolCall("mkdir", {"dir_name": "a"}))
    for number in range(40):
        apis.call(ToolCall("cp", {"source": "a", "destination": f"c{number}"}))
        apis.call(ToolCall("mv", {"source": f"c{number}", "destination": "a"}))
    assert apis.call(ToolCall("find", {})) == "Error during execution: the file system is full"
    assert apis.fork().full and not apis.same_state(Apis(("GorillaFileSystem",), {}))


def test_a_function_that_is_held_out_comes_back_when_the_benchmark_gives_it(public):
    session = public.reset(entry_task("multi_turn_miss_func_0"))
    names = {tool["function"]["name"] for tool in session.problem.tools}
    assert "sort" not in names and "grep" in names
    assert "sort" in {tool["function"]["name"] for tool in session.problem.tools_at(3)}
    assert session.problem.turns[2].unable and '"name": "sort"' in session.problem.turns[3].user


def test_calls_that_do_not_depend_on_each_other_come_in_any_order():
    env = BfclEnv()
    calls = [{"name": "add", "arguments": {"a": 1, "b": b}} for b in (2, 3)]
    data = {"classes": ["MathAPI"], "config": {}, "turns": [{"user": "1 plus 2, 1 plus 3", "calls": calls}]}
    session = env.reset(Task("bfcl", "two", "train", data))
    for action in ("add(a=1, b=2)", "add(a=1.0, b=3)", "[add(a=1, b=3), add(a=1, b=2)]"):
        assert env.accepts(session, action, "") == ("1.0" not in action)  # 4.0 is not the answer that is checked
    session.step("add(a=1, b=3)")
    assert not env.accepts(session, "add(a=1, b=3)", "") and env.accepts(session, "add(a=1, b=2)", "")
    session.step("add(a=1, b=2)")
    assert env.accepts(session, "done", "") and not env.accepts(session, "add(a=1, b=2)", "")
    assert session.step("done").won


def test_what_was_answered_before_may_be_asked_again_but_nothing_needless():
    """The check looks at all answers so far: 3 was seen in the first turn."""
    env = BfclEnv()
    three, seven = ({"name": "add", "arguments": {"a": a, "b": a + 1}} for a in (1, 3))
    turns = [{"user": "1 plus 2", "calls": [three]}, {"user": "both", "calls": [three, seven]}]
    session = env.reset(Task("bfcl", "again", "train", {"classes": ["MathAPI"], "config": {}, "turns": turns}))
    session.step("add(a=1, b=2)")
    session.step("done")
    assert env.accepts(session, "add(a=1, b=2)", "") and env.accepts(session, "add(a=3, b=4)", "")
    assert not env.accepts(session, "mean(numbers=[5])", "") and not env.accepts(session, "done", "")
    session.step("add(a=3, b=4)")
    assert env.accepts(session, "done", "") and not env.accepts(session, "add(a=3, b=4)", "")
    assert session.step("done").won
