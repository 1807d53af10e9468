"""The software world."""

from __future__ import annotations

import pytest

from turnwise.training.candidates import is_candidate
from turnwise.types import State, Task, ToolCall
from turnwise_worlds.sandbox.sandbox import Limits
from turnwise_worlds.software import PROGRAMS, TEST, Program, Slips, SoftwareEnv
from turnwise_worlds.workspace import Box

TESTS = """import bag

CASES = [
    ("bag.twice(2)", 4),
]

for call, want in CASES:
    got = eval(call)
    if got != want:
        print(call, "gave", got)
"""
FILES = {"bag.py": "def twice(x):\n    y = x + x\n    return y + 1\n", TEST: TESTS}
DATA = {
    "files": FILES,
    "cases": [["bag.twice(2)", "4"], ["bag.twice(0)", "0"], ["bag.twice(-3)", "-6"]],
    "fault": {"path": "bag.py", "line": 3, "function": "twice", "right": "return y"},
    "wrong": ["return x"],
}
HAND = Task("software", "hand/0", "train", DATA)


@pytest.fixture
def env(box: Box) -> SoftwareEnv:
    return SoftwareEnv(box=box)


def test_a_hand_made_episode(env: SoftwareEnv) -> None:
    session = env.reset(HAND)
    assert session.opening()[0]["content"] == "repair the code so that the tests pass\nfiles: bag.py tests.py"
    assert session.step("run").observation == "bag.twice(2) gave 5"
    assert session.step("search y + 1").observation == "bag.py:3: return y + 1"
    assert session.step("open bag.py").observation == "1 def twice(x):\n2     y = x + x\n3     return y + 1"
    assert session.step("open box.py").observation == "Error: no file box.py."
    assert session.step("edit bag.py 9 pass").observation == "Error: bag.py has lines 1 to 3."
    assert not session.step("edit bag.py 3 return (").won
    assert "SyntaxError" in session.step("run").observation
    last = session.step("edit bag.py 3 return y")
    assert (last.observation, last.reward, last.done, last.won) == ("3     return y", 1.0, True, True)
    with pytest.raises(RuntimeError, match="over after 8 turns"):
        session.step("run")


@pytest.mark.parametrize(
    "text",
    [
        "return 4",  # right for the shown case alone
        'print(\'found: ["4", "0", "-6"]\'); import os; os._exit(0)',
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "open('judge.py', 'w').write('')",
        "while True: pass",
        "return type('int', (int,), {'__eq__': lambda a, b: True, '__repr__': lambda a: '4'})(4)",
    ],
)
def test_only_right_values_win(text: str, box: Box) -> None:
    session = SoftwareEnv(box=Box(limits=Limits(seconds=2)) if "while" in text else box).reset(HAND)
    assert not session.step(f"edit bag.py 3 {text}").won


@pytest.mark.parametrize("calls", ["short", "hermes"])
def test_the_verifier_goes_by_the_tools_name(calls: str) -> None:
    env, strict = (SoftwareEnv(calls=calls, verifier=v) for v in ("name", "call"))  # type: ignore[arg-type]
    session = env.reset(HAND)
    expert = session.calls.write(ToolCall("open", {"path": "bag.py"}))
    for call, accepted in [
        (ToolCall("open", {"path": "bag.py"}), True),
        (ToolCall("open", {"path": TEST}), True),
        (ToolCall("open", {"path": "none.py"}), True),
        (ToolCall("open", {"path": "./bag.py"}), True),
        (ToolCall("search", {"text": "bag.py"}), False),
        (ToolCall("edit", {"path": "bag.py", "line": 1, "text": "x"}), False),
        (ToolCall("run", {}), False),
        (ToolCall("close", {"path": "bag.py"}), False),
    ]:
        assert env.accepts(session, session.calls.write(call), expert) is accepted
        assert strict.accepts(session, session.calls.write(call), expert) is (
            call.arguments == {"path": "bag.py"} and accepted
        )
    assert not env.accepts(session, "open", expert)
    assert env.same(expert, f" {expert} ") and not env.same(f"{expert} x", expert)
    assert session.turns == 0


def test_the_effect_is_what_is_shown_of_the_fault_or_its_repair(env: SoftwareEnv) -> None:
    assert env.verifier == "effect" and SoftwareEnv(level="full").verifier == "name"
    session = env.reset(HAND)
    steps = [  # the way to the fault: its function, its place, its line, its repair
        ("run", ["edit bag.py 2 y = x", "open tests.py", "search none", "edit bag.py 3 return x"]),
        ("search def twice", ["run", "search class twice", "open none.py"]),
        ("search y + 1", ["run", "search def twice", "open tests.py"]),
        (
            "edit bag.py 3 return y",
            ["run", "open bag.py", "search y + 1", "edit bag.py 3 return x", "edit bag.py 2 return y"],
        ),
    ]
    for good, useless in steps:
        assert not any(env.accepts(session, action, good) for action in useless)
        assert env.accepts(session, good, "run") and session.found == env.reset(HAND).found + steps.index(
            (good, useless)
        )
        session.step(good)
    assert session.won and not env.accepts(session, "run", "run")
    assert not env.accepts(env.reset(HAND), "open ./bag.py", "run")  # before anybody knows what fails
    for found in (1, 2):  # whoever opens the file at once needs no more
        session = env.reset(HAND)
        for good, _ in steps[:found]:
            session.step(good)
        assert env.accepts(session, "open ./bag.py", "run") and env.accepts(
            session, "edit bag.py 3 return 2 * x", "run"
        )


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_every_program_is_right_and_every_fault_shows(program: Program) -> None:
    names: dict = {}
    exec(program.text(), names)
    for given, value in program.cases:
        assert repr(eval(f"{program.name}({given})", names)) == value
    assert program.faults()
    for fault in program.faults():
        broken: dict = {}
        exec(program.text(fault), broken)
        assert any(_wrong(f"{program.name}({given})", value, broken) for given, value in program.cases), fault


def _wrong(call: str, value: str, names: dict) -> bool:
    try:
        return repr(eval(call, names)) != value
    except Exception:
        return True


def test_unseen_faults_are_of_no_training_task_though_their_right_lines_are() -> None:
    env = SoftwareEnv()
    broken, right = (
        {
            split: {(task.data["fault"]["function"], *of(task.data)) for task in env.tasks(split, 600)}
            for split in ("train", "seen", "unseen")
        }
        for of in (
            lambda data: (data["files"][data["fault"]["path"]].splitlines()[data["fault"]["line"] - 1],),
            lambda data: (data["fault"]["right"],),
        )
    )
    assert not broken["unseen"] & (broken["train"] | broken["seen"]) and len(broken["unseen"]) == 14
    assert right["unseen"] <= right["train"]


def test_the_tests_cannot_be_changed(env: SoftwareEnv) -> None:
    session = env.reset(HAND)
    assert session.step(f"edit ./{TEST} 4 # none").observation == "Error: the tests are not to be changed."
    assert session.step("run").observation == "bag.twice(2) gave 5"


def test_turns_that_were_answered_by_an_error_are_no_candidates(box: Box) -> None:
    astray = Slips(again=0, astray=0.8, lost=0, wrong=0)
    envs = {how: SoftwareEnv("full", box=box, slips=astray, candidates=how) for how in ("clean", "all")}
    played = (envs["clean"].demonstrate(envs["clean"].tasks("train", 1)[0], "clumsy", seed) for seed in range(40))
    trajectory = next(t for t in played if any(str(m["content"]).startswith("Error") for m in t.messages))
    states = [State(str(i), trajectory.task, (), turn=i) for i in range(len(trajectory.acts))]
    failed = [str(m["content"]).startswith("Error: no file") for m in trajectory.messages[trajectory.acts[0] + 1 :: 2]]
    assert any(failed) and not all(failed)
    kept = {how: [is_candidate(env, trajectory, state) for state in states] for how, env in envs.items()}
    assert kept == {"clean": [not each for each in failed], "all": [True] * len(failed)}
