"""The problems of ``env=math``: generated ones, and those of public data sets."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from turnwise.env import Level
from turnwise.errors import InputError
from turnwise_worlds.data_files import cleaned, read_data_file
from turnwise_worlds.tool_environment import boxed_answer

_SEEN = 5  # one in five problems belongs to the split unseen, and one in five of the remaining problems to seen


@dataclass(frozen=True, slots=True)
class MathProblem:
    kind: str
    text: str
    answer: str
    code: str | None = None  # Python code that computes the answer; None if no code is known

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.text}\n{self.answer}".encode()).hexdigest()[:12]

    def data(self) -> dict[str, Any]:
        return {"kind": self.kind, "problem": self.text, "answer": self.answer, "code": self.code}

    @staticmethod
    def of(data: Mapping[str, Any]) -> MathProblem:
        code = data.get("code")
        known = None if code is None else str(code)
        return MathProblem(str(data["kind"]), str(data["problem"]), str(data["answer"]), known)


Draw = Callable[[int, int], int]
Made = tuple[str, str, object]  # the problem, code that computes the answer, and the answer


def _chain(draw: Draw) -> Made:
    a, b, c = draw(12, 99), draw(3, 40), draw(2, 99)
    return f"What is {a} * {b} + {c}?", f"{a} * {b} + {c}", a * b + c


def _rest(draw: Draw) -> Made:
    a, b = draw(200, 999), draw(7, 40)
    return f"What is the rest of {a} by {b}?", f"{a} % {b}", a % b


def _power(draw: Draw) -> Made:
    a, b = draw(3, 30), draw(2, 4)
    return f"What is {a} to the power {b}?", f"{a} ** {b}", a**b


def _total(draw: Draw) -> Made:
    a, b = draw(2, 40), draw(41, 99)
    return f"What is the sum of {a} to {b}?", f"sum(range({a}, {b + 1}))", (a + b) * (b - a + 1) // 2


def _difference(draw: Draw) -> Made:
    a, b, c = draw(100, 999), draw(12, 60), draw(3, 30)
    return f"What is {a} - {b} * {c}?", f"{a} - {b} * {c}", a - b * c


def _multiples(draw: Draw) -> Made:
    n, a, b = draw(200, 5000), draw(3, 12), draw(13, 40)
    text = f"How many positive integers not greater than {n} are divisible by {a} or by {b}?"
    code = f"print(sum(1 for i in range(1, {n} + 1) if i % {a} == 0 or i % {b} == 0))"
    return text, code, n // a + n // b - n // math.lcm(a, b)


def _modular(draw: Draw) -> Made:
    a, b, m = draw(3, 60), draw(50, 900), draw(11, 99)
    text = f"What is the remainder when ${a}^{{{b}}}$ is divided by ${m}$?"
    return text, f"print(pow({a}, {b}, {m}))", pow(a, b, m)


def _congruences(draw: Draw) -> Made:
    m, n = ((7, 11), (9, 16), (13, 15), (17, 20), (19, 21))[draw(0, 4)]
    a, b = draw(0, m - 1), draw(0, n - 1)
    text = f"Find the smallest non-negative integer that leaves remainder {a} modulo {m} and remainder {b} modulo {n}."
    code = f"for x in range({m * n}):\n    if x % {m} == {a} and x % {n} == {b}:\n        print(x)\n        break"
    return text, code, (a * n * pow(n, -1, m) + b * m * pow(m, -1, n)) % (m * n)


def _divisors(draw: Draw) -> Made:
    a, b, c = draw(1, 5), draw(1, 4), draw(1, 3)
    n = 2**a * 3**b * 5**c
    text = f"How many positive divisors does ${n}$ have?"
    return text, f"print(sum(1 for d in range(1, {n} + 1) if {n} % d == 0))", (a + 1) * (b + 1) * (c + 1)


def _system(draw: Draw) -> Made:
    a, b, c, d = draw(2, 12), draw(2, 12), draw(2, 12), draw(2, 12)
    if a * d == b * c:
        d += 1
    e, f = draw(5, 60), draw(5, 60)
    text = (
        f"The numbers $x$ and $y$ satisfy ${a}x + {b}y = {e}$ and ${c}x + {d}y = {f}$. What is $x + y$ as a fraction?"
    )
    code = (
        "from fractions import Fraction\n"
        f"det = {a} * {d} - {b} * {c}\n"
        f"x = Fraction({e} * {d} - {b} * {f}, det)\n"
        f"y = Fraction({a} * {f} - {e} * {c}, det)\n"
        "print(x + y)"
    )
    return text, code, Fraction(e * d - b * f + a * f - e * c, a * d - b * c)


def _paths(draw: Draw) -> Made:
    a, b = draw(3, 9), draw(3, 9)
    text = f"A path on a grid goes from $(0,0)$ to $({a},{b})$ in unit steps to the right or up. How many such paths are there?"
    return text, f"from math import comb\nprint(comb({a + b}, {a}))", math.comb(a + b, a)


_TINY = (_chain, _rest, _power, _total, _difference)
_FULL = (_multiples, _modular, _congruences, _divisors, _system, _paths)
KINDS: Mapping[str, Mapping[str, Callable[[Draw], Made]]] = {
    level: {make.__name__.lstrip("_"): make for make in made} for level, made in (("tiny", _TINY), ("full", _FULL))
}


def make_problems(level: Level, split: str, count: int, seed: int) -> list[MathProblem]:
    """Returns different problems. A larger ``count`` only adds some. A hash of the text decides the split."""
    problems: dict[str, MathProblem] = {}
    kinds = list(KINDS[level].items())
    for number in range(200 * count + 1000):
        if len(problems) == count:
            break
        kind, make = kinds[number % len(kinds)]
        text, code, answer = make(random.Random(f"math {level} {seed} {number}").randint)
        held_out = int(hashlib.sha256(text.encode()).hexdigest(), 16) % (_SEEN * _SEEN)
        if ("unseen" if held_out % _SEEN == 0 else "seen" if held_out // _SEEN == 0 else "train") == split:
            problems.setdefault(text, MathProblem(kind, text, str(answer), code))
    if len(problems) < count:
        raise InputError(
            f"env=math: the split {split} has fewer than {count} problems at env.level={level}; set env.level=full or "
            "set env.files to problem files, or lower data.trajectories, states.count or eval.tasks"
        )
    return list(problems.values())


_PROBLEM = ("problem", "question")
_ANSWER = ("answer", "final_answer", "expected_answer", "target")


def read_problems(path: str | Path, key: str) -> list[MathProblem]:
    problems: dict[str, MathProblem] = {}
    for place, record in read_data_file(path, key):
        lower = {str(name).lower(): value for name, value in record.items()}
        if _left_out(lower):
            continue
        text = next((lower[name] for name in _PROBLEM if isinstance(lower.get(name), str)), "")
        answer = _answer(lower)
        if not text.strip() or answer is None:
            raise InputError(
                f"{place}: a record needs the problem under {' or '.join(_PROBLEM)}, and the answer under "
                f"{', '.join(_ANSWER)} or in a solution with \\boxed{{}}; its keys are {sorted(map(str, record))}"
            )
        kind = lower.get("data_set") or lower.get("subject") or lower.get("type") or "file"
        problem = MathProblem(str(kind), cleaned(text).strip(), answer)
        problems.setdefault(problem.key, problem)
    if not problems:
        raise InputError(f"{path}: the file contains no problem with a final answer; set {key} to another file")
    return list(problems.values())


def _left_out(record: Mapping[str, Any]) -> bool:
    if "olympiadbench" in str(record.get("source", "")).lower() or "final_answer" in record:
        pictures = any(record.get(name) not in (None, "", [], "[]") for name in record if str(name).startswith("image"))
        return pictures or record.get("modality") == "Multimodal" or record.get("final_answer", "") in (None, [], "[]")
    return False


def _answer(record: Mapping[str, Any]) -> str | None:
    for name in _ANSWER:
        value = record.get(name)
        if isinstance(value, str) and value.lstrip().startswith("[") and name == "final_answer":
            # the text need not be a list, because an interval also begins with a bracket
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # a file with typed columns may store 204 as 204.0
        if value is not None and not isinstance(value, bool | dict) and str(value).strip():
            return cleaned(str(value)).strip()
    solution = record.get("solution")
    return boxed_answer(solution) if isinstance(solution, str) else None
