"""Repositories with one seeded fault and a test that fails because of it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from typing import Any

from turnwise.envs.environment import Level
from turnwise.envs.software.programs import PROGRAMS, Program
from turnwise.types import Task

SHAPES: Mapping[Level, tuple[int, int]] = {"tiny": (2, 1), "full": (4, 3)}  # modules, functions of each
MODULES = ("bag", "box", "core", "data", "item", "num", "part", "shop", "tool", "unit")  # no names of the library
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
    """Task number ``index`` of a split.

    ``train`` and ``seen`` share faults and no repository: its hash decides which of the two it belongs to. ``unseen`` has
    wrong forms of a line that no training task has; what is right there, training tasks with other forms have shown.
    """
    attempt = 0
    while True:
        rng = random.Random(f"software {level} {split} {seed} {index} {attempt}")
        data = _draw(*SHAPES[level], split == "unseen", rng)
        if split == "unseen" or _is_seen(data) == (split == "seen"):
            return Task("software", f"{split}/{level}/{seed}/{index:06d}", split, data)
        attempt += 1


def held_out(program: Program) -> list[tuple[int, int]]:
    """Returns the faults of ``unseen`` alone: of each line that can be wrong in several ways the last, as (line, form)."""
    forms = {i: len(line) - 1 for i, line in enumerate(program.body) if isinstance(line, tuple)}
    return [(i, last) for i, last in forms.items() if last > 1]


BREAKABLE = tuple(sorted(name for name, program in PROGRAMS.items() if held_out(program)))
"""Functions that ``unseen`` breaks."""


def _is_seen(data: Mapping[str, Any]) -> bool:
    """A tenth of the repositories with known faults."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).digest()[0] < 26


def _draw(modules: int, functions: int, unseen: bool, rng: random.Random) -> dict[str, Any]:
    """Returns a repository: modules of functions, one of them broken, and the tests of all."""
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
    """Returns the first case that the fault gets wrong. Our own text is run here, never a policy's."""
    names: dict[str, Any] = {}
    exec(program.text(fault), names)
    for (given, value), case in zip(program.cases, cases, strict=True):
        try:
            if eval(f"{program.name}({given})", names) != eval(value):
                return [case]
        except Exception:
            return [case]
    raise ValueError(f"{program.name}: no case tells the fault {fault} from the right form")


def _tests(names: list[str], cases: list[tuple[str, str]]) -> str:
    imports = "\n".join(f"import {name[:-3]}" for name in sorted(names))
    lines = "".join(f'    ("{call}", {value}),\n' for call, value in cases)
    return f"{imports}\n\nCASES = [\n{lines}]\n{_RUNNER}"
