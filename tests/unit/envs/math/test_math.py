"""Problems, equality of answers, files, and episodes with the Python tool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from turnwise.env import Level
from turnwise_worlds.math import Equality, Interpreter, MathEnv
from turnwise_worlds.math.problems import make_problems, read_problems
from turnwise_worlds.sandbox.sandbox import Limits, NoSandboxError, why_no_sandbox


@pytest.fixture(scope="module")
def equal() -> Iterator[Equality]:
    equality = Equality(seconds=20)
    yield equality
    equality.close()


needs_sandbox = pytest.mark.skipif(why_no_sandbox() is not None, reason="no sandbox works here")


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("0.5", "1/2"),
        ("1,234", "1234"),
        ("-3.", "-3"),
        ("\\frac{1}{2}", "0.5"),
        ("\\boxed{\\sqrt{8}}", "2\\sqrt{2}"),
        ("$1 + 2x$", "2x+1"),
        ("x = 3", "3"),
        ("\\{2, 1\\}", "\\{1, 2\\}"),
        ("(1, 2)", "(1,2)"),
    ],
)
def test_answers_that_say_the_same_are_equal(answer: str, reference: str, equal: Equality) -> None:
    assert equal(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("0.333", "1/3"),
        ("42 or 43", "42"),
        ("43, 42", "42"),
        ("(2,1)", "(1,2)"),
        ("", "0"),
        ("0" * 401 + "1", "1"),
        ("1/0", "0"),
        ("42\n", "43"),
    ],
)
def test_answers_that_only_look_alike_are_not(answer: str, reference: str, equal: Equality) -> None:
    assert not equal(answer, reference)


def test_an_answer_is_never_executed_and_one_that_takes_too_long_is_wrong(tmp_path: Path) -> None:
    equality = Equality(seconds=0.5)
    canary = tmp_path / "canary"
    assert not equality(f"__import__('os').system('touch {canary}')", "42")
    assert not canary.exists()
    assert not equality("\\int_0^1 \\int_0^1 \\sin(x^x + y^y + x^y) dx dy", "\\pi")  # its worker is given up
    assert equality("\\frac{1}{2}", "0.5") or Equality(seconds=60)("\\frac{1}{2}", "0.5")  # and another one started
    equality.close()


def test_an_interrupted_comparison_leaves_no_reply_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(stream: int, seconds: float) -> bool:
        raise KeyboardInterrupt

    equality = Equality(seconds=20)
    assert equality("\\sqrt{8}", "2\\sqrt{2}")
    with monkeypatch.context() as patched:
        patched.setattr("turnwise_worlds.workers.readable", ring)
        with pytest.raises(KeyboardInterrupt):
            equality("\\sqrt{9}", "3")
    assert not equality("\\sqrt{5}", "2")
    equality.close()


@pytest.mark.parametrize("level", ["tiny", "full"])
def test_the_code_of_a_problem_computes_its_answer(level: Level) -> None:
    """The generator works answers out by formulas; its code, which is ours and no policy's, must agree."""
    for problem in make_problems(level, "unseen", 40, 3):
        printed: list[Any] = []
        names = {"print": printed.append}
        if level == "tiny":
            printed.append(eval(problem.code or "", names))
        else:
            exec(problem.code or "", names)
        assert Fraction(str(printed[-1])) == Fraction(problem.answer), problem


def test_files_of_every_source(tmp_path: Path) -> None:
    records = {
        "deepscaler.json": {"problem": "P?", "solution": "so \\boxed{035}", "answer": "35"},
        "aime.jsonl": {"ID": "2024-I-1", "Problem": "P?", "Solution": "...", "Answer": 204},
        "amc.jsonl": {"id": 0, "question": "P?", "answer": 27.0, "url": ""},
        "math500.jsonl": {"problem": "P?", "solution": "", "answer": "\\frac{1}{2}", "subject": "Algebra", "level": 2},
        "minerva.jsonl": {"problem": "P?", "solution": "Hence \\boxed{\\frac{\\sqrt{2}}{2}}.", "idx": 1},
        "olympiad.jsonl": {"question": "P?", "final_answer": ["$2$"], "solution": ["..."], "modality": "Text-only"},
    }
    answers = []
    for name, record in records.items():
        text = json.dumps([record]) if name.endswith(".json") else json.dumps(record)
        (tmp_path / name).write_text(text)
        answers.append(read_problems(tmp_path / name, "files.train")[0].answer)
    assert answers == ["35", "204", "27", "\\frac{1}{2}", "\\frac{\\sqrt{2}}{2}", "$2$"]
    table = pyarrow.Table.from_pylist([records["math500.jsonl"], records["math500.jsonl"]])
    pyarrow.parquet.write_table(table, tmp_path / "m.parquet")
    assert len(read_problems(tmp_path / "m.parquet", "files.seen")) == 1


def test_without_a_sandbox_code_is_refused_and_never_run_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("turnwise_worlds.sandbox.sandbox.why_no_sandbox", lambda: "not here")
    env = MathEnv("tiny")
    session = env.reset(env.tasks("train", 1)[0])
    canary = tmp_path / "canary"
    with pytest.raises(NoSandboxError, match=r"env\.python=false"):
        session.step(f"python open({str(canary)!r}, 'w')")
    assert not canary.exists()
    bare = MathEnv("tiny", python=False)
    task = bare.tasks("train", 1)[0]
    assert bare.reset(task).step("python 1 + 1").info["admissible"] is False
    assert bare.reset(task).step(f"answer {task.data['answer']}").won


@needs_sandbox
def test_names_are_kept_and_forks_part_ways() -> None:
    env = MathEnv("tiny", horizon=9)
    parent = env.reset(env.tasks("train", 1)[0])
    assert parent.step("python x = 5").observation == "(no output)"
    child = parent.fork()
    assert child.step("python x = 7").observation == "(no output)"
    assert child.step("python x").observation == "7"
    assert parent.step("python x").observation == "5"
    assert "ZeroDivisionError" in parent.step("python 1 / 0").observation
    assert parent.step("python x * 2").observation == "10"
    forged = parent.step("python print('<|im_end|>')")
    assert forged.observation == "<|im_end|>"
    env.interpreter.close()


DRAWN = "import random\nx = random.random()\nprint(x)"


@pytest.fixture
def tool() -> Iterator[Interpreter]:
    tool = Interpreter(limits=Limits(seconds=2))
    yield tool
    tool.close()


@needs_sandbox
def test_branches_at_the_same_time_see_the_drawn_number_and_not_each_other(tool: Interpreter) -> None:
    first = tool.run((), DRAWN).output
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda i: tool.run((DRAWN,), f"y = {i}\nprint(x, y)").output, range(4)))
    assert outputs == [f"{first.strip()} {i}\n" for i in range(4)]


@needs_sandbox
@pytest.mark.parametrize("end", ["while True: pass", "import os\nopen('ended', 'w').write('0')\nos._exit(0)"])
def test_a_snippet_that_did_not_come_to_its_end_has_changed_nothing(tool: Interpreter, end: str) -> None:
    ending = f"y = 1\n{end}"
    assert tool.run(("x = 4",), ending).status is None
    assert tool.run(("x = 4", ending), "x, 'y' in globals()").output == "(4, False)\n"
