"""Generates code repositories in which one line is wrong and a test fails because of this line."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any

from turnwise.envs.environment import Level
from turnwise.envs.software.programs import PROGRAMS, Program
from turnwise.types import Task

# level -> (number of modules, number of functions per module)
SHAPES: Mapping[Level, tuple[int, int]] = {"tiny": (2, 1), "full": (4, 3)}
# names of generated modules; Python's library has no modules with these names
MODULES = ("bag", "box", "core", "data", "item", "num", "part", "shop", "tool", "unit")
TEST = "tests.py"

_RUNNER = """
for call, want in CASES:
    try:
        got = eval(call)
    except Exception as error:
        got = error
    if got != want:
        print(call, "gave", repr(got) + ", not", repr(want))
"""


def make_task(level: Level, split: str, seed: int, index: int) -> Task:
    """Returns task number ``index`` of a split.

    A fault is a wrong form of a line. ``train`` and ``seen`` share faults, but no repository. ``unseen`` uses faults
    that no training task contains, on lines that training tasks break in other ways.
    """
    attempt = 0
    while True:
        rng = random.Random(f"software {level} {split} {seed} {index} {attempt}")
        data = _draw(*SHAPES[level], split == "unseen", rng)
        if split == "unseen" or _is_seen(data) == (split == "seen"):
            return Task("software", f"{split}/{level}/{seed}/{index:06d}", split, data)
        attempt += 1


def held_out(program: Program) -> list[tuple[int, int]]:
    """Returns the faults of a function that are reserved for the split ``unseen``.

    These are the last wrong forms of all lines with several wrong forms, as pairs (index of the line, index of its
    form).
    """
    forms = {i: len(line) - 1 for i, line in enumerate(program.body) if isinstance(line, tuple)}
    return [(i, last) for i, last in forms.items() if last > 1]


BREAKABLE = tuple(sorted(name for name, program in PROGRAMS.items() if held_out(program)))
"""Names of the functions that tasks of the split ``unseen`` can break."""


def _is_seen(data: Mapping[str, Any]) -> bool:
    """Returns whether a repository belongs to ``seen`` (about one in ten) and not to ``train``."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).digest()[0] < 26


def _draw(modules: int, functions: int, unseen: bool, rng: random.Random) -> dict[str, Any]:
    """Returns the data of a task: a repository with ``functions`` functions in each module, its fault and its test
    cases.
    """
    names = [f"{name}.py" for name in rng.sample(MODULES, modules)]
    broken = PROGRAMS[rng.choice(BREAKABLE if unseen else sorted(PROGRAMS))]
    chosen = [broken.name, *rng.sample(sorted(set(PROGRAMS) - {broken.name}), modules * functions - 1)]
    fault = rng.choice([fault for fault in broken.faults() if (fault in held_out(broken)) == unseen])
    line = broken.body[fault[0]]
    places = {program: names[i // functions] for i, program in enumerate(chosen)}
    files = {name: _module([PROGRAMS[p] for p in sorted(chosen) if places[p] == name], broken, fault) for name in names}
    at = files[places[broken.name]].split(f"def {broken.name}(")[0].count("\n") + 2 + fault[0]
    shown, held = [], []
    for program in sorted(chosen):
        cases = [(f"{places[program][:-3]}.{program}({given})", value) for given, value in PROGRAMS[program].cases]
        first = _telling(PROGRAMS[program], fault, cases) if program == broken.name else cases[:1]
        shown += first
        held += [case for case in cases if case not in first]
    files[TEST] = _tests(names, shown)
    return {
        "files": files,
        "fault": {"path": places[broken.name], "line": at, "function": broken.name, "right": line[0].strip()},
        "wrong": [form.strip() for form in line[1:] if form != line[fault[1]]],
        "cases": [list(case) for case in shown + held],
    }


def _module(programs: list[Program], broken: Program, fault: tuple[int, int]) -> str:
    return "\n\n".join(program.text(fault if program is broken else None) for program in programs)


def _telling(program: Program, fault: tuple[int, int], cases: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the first element of ``cases`` for which the broken function gives a wrong value, as a list.

    ``cases`` has one element for each test case of ``program``, in order. This function never executes code of the
    policy.
    """
    names: dict[str, Any] = {}
    exec(program.text(fault), names)
    for (given, value), case in zip(program.cases, cases, strict=True):
        try:
            if eval(f"{program.name}({given})", names) != eval(value):
                return [case]
        except Exception:
            return [case]
    raise ValueError(f"{program.name}: no test case distinguishes the fault {fault} from the correct program")


def _tests(names: list[str], cases: list[tuple[str, str]]) -> str:
    imports = "\n".join(f"import {name[:-3]}" for name in sorted(names))
    lines = "".join(f'    ("{call}", {value}),\n' for call, value in cases)
    return f"{imports}\n\nCASES = [\n{lines}]\n{_RUNNER}"
