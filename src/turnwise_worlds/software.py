"""``env=software``: small repositories with one wrong line, which is repaired with tools."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from turnwise.data.tool_schema import make_tool
from turnwise.data.toolcalls import ToolCallError
from turnwise.env import Level, Step
from turnwise.types import Task, ToolCall
from turnwise_worlds.sandbox.folder_value import File, folder_tree
from turnwise_worlds.scripted_experts import Chances, Expert, first_drawn
from turnwise_worlds.tool_environment import REFUSED
from turnwise_worlds.workspace import STOPPED, WorkspaceEnv, WorkspaceSession, cut

NO_FAULT = -1, 0


@dataclass(frozen=True, slots=True)
class Program:
    """One function of a generated repository."""

    name: str
    head: str  # the function's first line, without the colon
    body: tuple[tuple[str, ...], ...]  # of each line the right form, then the wrong ones
    cases: tuple[tuple[str, str], ...]  # (arguments, right value), both as Python text

    def text(self, fault: tuple[int, int] = NO_FAULT) -> str:
        """The function with a fault, which is a pair (line, form)."""
        lines = [forms[fault[1] if fault[0] == i else 0] for i, forms in enumerate(self.body)]
        return "\n".join([f"def {self.head}:", *lines]) + "\n"

    def faults(self) -> list[tuple[int, int]]:
        return [(i, form) for i, forms in enumerate(self.body) for form in range(1, len(forms))]


def _program(text: str) -> Program:
    head, *lines, cases = text.splitlines()
    indents = [line[: len(line) - len(line.lstrip())] for line in lines]
    body = [tuple(indent + form.strip() for form in line.split("|")) for indent, line in zip(indents, lines)]
    pairs = [case.partition(" -> ")[::2] for case in cases.split("; ")]
    return Program(head.partition("(")[0], head, tuple(body), tuple(pairs))


_FILE = Path(__file__).with_name("software.txt").read_text(encoding="utf-8")
PROGRAMS = {program.name: program for program in map(_program, _FILE.split("\n\n")[1:])}


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


def make_software_task(level: Level, split: str, seed: int, index: int) -> Task:
    """A fault is a wrong form of a line. ``train`` and ``seen`` share faults, but no repository. ``unseen`` has faults
    that no training task has, on lines that training tasks break in other ways.
    """
    data = first_drawn(
        f"software {level} {split} {seed} {index} ",
        lambda rng: _draw_repository(*SHAPES[level], split == "unseen", rng),
        lambda data: split == "unseen" or _is_seen(data) == (split == "seen"),
    )
    return Task("software", f"{split}/{level}/{seed}/{index:06d}", split, data)


def held_out(program: Program) -> list[tuple[int, int]]:
    """Returns the faults (line, form) that are reserved for ``unseen``: the last wrong forms of lines with several."""
    return [(i, len(forms) - 1) for i, forms in enumerate(program.body) if len(forms) > 2]


BREAKABLE = tuple(sorted(name for name, program in PROGRAMS.items() if held_out(program)))
"""Names of the functions that tasks of the split ``unseen`` can break."""


def _is_seen(data: Mapping[str, Any]) -> bool:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).digest()[0] < 26


def _draw_repository(modules: int, functions: int, unseen: bool, rng: random.Random) -> dict[str, Any]:
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
        cases = [
            (f"{places[program][:-3]}.{program}({arguments})", value) for arguments, value in PROGRAMS[program].cases
        ]
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
    return "\n\n".join(program.text(fault if program is broken else NO_FAULT) for program in programs)


def _telling(program: Program, fault: tuple[int, int], cases: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the first case in which the broken function is wrong, as a list. Never runs the policy's code."""
    names: dict[str, Any] = {}
    exec(program.text(fault), names)
    for (arguments, value), case in zip(program.cases, cases, strict=True):
        try:
            if eval(f"{program.name}({arguments})", names) != eval(value):
                return [case]
        except Exception:
            return [case]
    raise ValueError(f"{program.name}: no test case distinguishes the fault {fault} from the correct program")


def _tests(names: list[str], cases: list[tuple[str, str]]) -> str:
    imports = "\n".join(f"import {name[:-3]}" for name in sorted(names))
    lines = "".join(f'    ("{call}", {value}),\n' for call, value in cases)
    return f"{imports}\n\nCASES = [\n{lines}]\n{_RUNNER}"


TOOLS = (
    make_tool("search", "Lines of all files that hold a text.", text=("string", "what to look for")),
    make_tool("open", "A file, its lines numbered.", path=("string", "the file")),
    make_tool(
        "edit",
        "Replace one line of a file; a text without indentation takes the line's own.",
        path=("string", "the file"),
        line=("integer", "its number"),
        text=("string", "what the line is to be"),
    ),
    make_tool("run", "Run the tests."),
)
_RULES = "You repair a repository of Python files. One line is wrong. The task is done as soon as all tests pass."
_LIST = 8  # maximum number of lines that a search shows
_FEW = 3  # a search that shows more than 3 lines counts as unspecific, for example the search for a single letter

_MARK = "found: "
# This script runs in the sandbox. It prints one JSON list with the result of each test case's call as text. The right
# values stay outside the sandbox, so that the policy's code cannot read them.
_JUDGE = """
import importlib, json, sys
sys.path.insert(0, "")
names, found = {{}}, []
for call in json.loads({calls!r}):
    try:
        name = call.split(".")[0]
        names[name] = importlib.import_module(name)
        found.append(repr(eval(call, names)))
    except Exception as error:
        found.append("raised " + type(error).__name__)
print({mark!r} + json.dumps(found))
"""


class SoftwareSession(WorkspaceSession):
    """The task is solved when the code returns the right value in every case, shown or hidden. ``found`` says what the
    observations have shown: 0 nothing, 1 which function fails, 2 also its place, 3 also its wrong line. It stays 0
    until the name was shown.
    """

    def __init__(self, task: Task, env: SoftwareEnv) -> None:
        tree = folder_tree(task.data["files"])
        self.cases = dict(task.data["cases"])
        self.fault = {key: task.data["fault"][key] for key in ("path", "line", "function")}
        files = " ".join(path for path, entry in tree.items() if isinstance(entry, File))
        request = f"repair the code so that the tests pass\nfiles: {files}"
        super().__init__(task, env, tree, _RULES, request)
        self.found = 0

    def act(self, call: ToolCall) -> Step:
        observation = cut(getattr(self, f"_{call.name}")(**call.arguments), self.shown)
        shows = self._shows(call, observation)
        if shows == 1 or self.found:
            self.found = max(self.found, shows)
        won = call.name == "edit" and self._judged()
        return Step(observation, float(won), won, won)

    def bettered(self, after: SoftwareSession) -> bool:
        return after.won or after.found > self.found

    def lines(self, path: str) -> list[str]:
        entry = self.tree.get(path.removeprefix("./"))
        if not isinstance(entry, File):
            raise ToolCallError(f"no file {path[:80]}")
        return entry.content.decode().splitlines()

    def _shows(self, call: ToolCall, answer: str) -> int:
        path, number, function = self.fault["path"], self.fault["line"], self.fault["function"]
        lines = answer.splitlines()
        if call.name == "run":
            return int(any(line.startswith(f"{path.removesuffix('.py')}.{function}(") for line in lines))
        if call.name == "search":
            if len(lines) > _FEW:
                return 0
            if any(line.startswith(f"{path}:{number}:") for line in lines):
                return 3
            return 2 * any(line.startswith(f"{path}:") and f" def {function}(" in line for line in lines)
        if call.name == "open" and call.arguments["path"].removeprefix("./") == path:
            return 3 * (f"{number} {self.lines(path)[number - 1]}" in lines)
        return 0

    def _search(self, text: str) -> str:
        matches = [
            f"{path}:{number}: {line.strip()}"
            for path in self.tree
            for number, line in enumerate(self.lines(path), start=1)
            if text in line
        ]
        more = [f"[{len(matches) - _LIST} more]"] if len(matches) > _LIST else []
        return "\n".join(matches[:_LIST] + more) or "nothing found"

    def _open(self, path: str) -> str:
        return "\n".join(f"{number} {line}" for number, line in enumerate(self.lines(path), start=1) if line)

    def _edit(self, path: str, line: float, text: str) -> str:
        path, number = path.removeprefix("./"), int(line)
        lines = self.lines(path)
        if path == TEST:
            raise ToolCallError("the tests are not to be changed")
        if not 1 <= number <= len(lines):
            raise ToolCallError(f"{path} has lines 1 to {len(lines)}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ToolCallError("the text is no UTF-8") from None
        old = lines[number - 1]
        indent = "" if text[:1].isspace() else old[: len(old) - len(old.lstrip())]
        lines[number - 1] = indent + text
        self.tree = {**self.tree, path: File("".join(f"{line}\n" for line in lines).encode())}
        return f"{number} {lines[number - 1]}"

    def _run(self) -> str:
        outcome, _ = self.box.run(f"python3 {TEST}", self.tree)
        if outcome.stopped:
            return STOPPED[outcome.stopped]
        text = outcome.output.rstrip()
        return text.splitlines()[-1] if not outcome.ok and text else text or "all tests pass"

    def _judged(self) -> bool:
        script = _JUDGE.format(calls=json.dumps(list(self.cases)), mark=_MARK)
        tree = {**self.tree, "judge.py": File(script.encode())}
        outcome, _ = self.box.run("python3 judge.py", tree)
        lines = [line for line in outcome.output.splitlines() if line.startswith(_MARK)]
        if not outcome.ok or len(lines) != 1:
            return False
        try:
            outcomes = json.loads(lines[0].removeprefix(_MARK))
        except ValueError:
            return False
        return bool(outcomes == list(self.cases.values()))


@dataclass(frozen=True, slots=True)
class Slips(Chances):
    again: float = 0.08  # runs the tests once more
    astray: float = 0.12  # opens another file, or one that does not exist
    lost: float = 0.06  # searches for a text that no file contains
    wrong: float = 0.35  # when only the edit is left, edits the right line wrongly; the next action corrects it


class SoftwareExpert(Expert[SoftwareSession]):
    """Runs the tests, opens the file of the function that fails, and corrects the line. The seed decides whether it
    searches for the function before.
    """

    def __init__(self, session: SoftwareSession, seed: int | str) -> None:
        super().__init__(session, seed)
        self.fault: Mapping[str, Any] = session.task.data["fault"]
        self.plan = ["run", *(["search"] if self.rng.random() < 0.5 else []), "open", "edit"]

    def best(self, session: SoftwareSession) -> str:
        step = self.plan.pop(0) if len(self.plan) > 1 else self.plan[0]
        fault = self.fault
        arguments: Mapping[str, tuple[Any, ...]] = {
            "run": (),
            "search": (f"def {fault['function']}",),
            "open": (fault["path"],),
            "edit": (fault["path"], fault["line"], fault["right"]),
        }
        return session.write(step, *arguments[step])

    def _again(self, session: SoftwareSession) -> str:
        return session.write("run")

    def _astray(self, session: SoftwareSession) -> str:
        others = [path for path in session.tree if path != self.fault["path"]]
        return session.write("open", self.rng.choice([*others, f"{self.fault['function']}.py"]))

    def _lost(self, session: SoftwareSession) -> str:
        return session.write("search", f"class {self.fault['function']}")

    def _wrong(self, session: SoftwareSession) -> str | None:
        choices = session.task.data["wrong"]
        if self.plan != ["edit"] or not choices:
            return None
        return session.write("edit", self.fault["path"], self.fault["line"], self.rng.choice(choices))


class SoftwareEnv(WorkspaceEnv[SoftwareSession]):
    """The policy repairs a repository. ``conf/env/software.yaml`` explains the arguments."""

    name = "software"
    tools, verifiers = TOOLS, ("effect", "call", "name")
    session, expert, errs = SoftwareSession, SoftwareExpert, Slips
    make_task = staticmethod(make_software_task)
    usual: ClassVar = {"tiny": (400, "effect", "all"), "full": (2000, "name", "clean")}

    def is_candidate(self, observation: str) -> bool:
        """Turns that were answered by an error are none (PivotRL, arXiv:2603.21383, App. A.2)."""
        return not (self.clean and observation.startswith(REFUSED))

    def alike(self, ours: ToolCall, theirs: ToolCall) -> bool:
        return ours.name == theirs.name and (self.verifier == "name" or ours.arguments == theirs.arguments)
