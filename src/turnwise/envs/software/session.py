"""A running episode of ``env=software``: the policy searches, opens and edits files and runs the repository's tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnwise.data.tool_schema import make_tool
from turnwise.data.toolcalls import ToolCallError
from turnwise.envs.boxed import STOPPED, Box, cut
from turnwise.envs.calls import Calls, refusal
from turnwise.envs.environment import Step
from turnwise.envs.software.tasks import TEST
from turnwise.envs.workspace import WorkspaceSession
from turnwise.sandbox.folder_value import File, tree_of
from turnwise.types import Task, ToolCall

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
    """A running episode of ``env=software``. It implements ``turnwise.envs.environment.Session``.

    The task is solved when the code returns the right value in every test case, shown or hidden.

    ``found`` says which part of the fault the observations have shown: 0 nothing, 1 the name of the function that
    fails, 2 also its place, and 3 also its wrong line. The number stays 0 until an observation shows the name, even if
    another observation has shown the place or the line.
    """

    def __init__(self, task: Task, box: Box, calls: Calls, horizon: int, shown: int) -> None:
        try:
            tree = tree_of(task.data["files"])
            self.cases = dict(task.data["cases"])
            self.fault = {key: task.data["fault"][key] for key in ("path", "line", "function")}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"task data: a software task needs files, cases and a fault ({error!r})") from None
        files = " ".join(path for path, entry in tree.items() if isinstance(entry, File))
        request = f"repair the code so that the tests pass\nfiles: {files}"
        super().__init__(task, tree, box, calls, horizon, shown, _RULES, request)
        self.found = 0

    def act(self, call: ToolCall) -> Step:
        """Makes the policy's call. After an edit, all test cases are run."""
        observation = cut(getattr(self, f"_{call.name}")(call.arguments), self.shown)
        shows = self._shows(call, observation)
        if shows == 1 or self.found:
            self.found = max(self.found, shows)
        won = call.name == "edit" and self._judged()
        return Step(observation, float(won), won, won)

    def refused(self, error: ToolCallError) -> str:
        return cut(refusal(error), self.shown)

    def lines(self, path: str) -> list[str]:
        """Returns the lines of a file. Raises ``ToolCallError`` if there is no file with this path."""
        entry = self.tree.get(path.removeprefix("./"))
        if not isinstance(entry, File):
            raise ToolCallError(f"no file {path[:80]}")
        return entry.content.decode().splitlines()

    def _shows(self, call: ToolCall, answer: str) -> int:
        """Returns which part of the fault the observation ``answer`` shows, as a value of ``found``."""
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

    def _search(self, arguments: Mapping[str, Any]) -> str:
        text = arguments["text"]
        found = [
            f"{path}:{number}: {line.strip()}"
            for path in self.tree
            for number, line in enumerate(self.lines(path), start=1)
            if text in line
        ]
        more = [f"[{len(found) - _LIST} more]"] if len(found) > _LIST else []
        return "\n".join(found[:_LIST] + more) or "nothing found"

    def _open(self, arguments: Mapping[str, Any]) -> str:
        lines = self.lines(arguments["path"])
        return "\n".join(f"{number} {line}" for number, line in enumerate(lines, start=1) if line)

    def _edit(self, arguments: Mapping[str, Any]) -> str:
        path, number, text = arguments["path"].removeprefix("./"), int(arguments["line"]), arguments["text"]
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

    def _run(self, arguments: Mapping[str, Any]) -> str:
        outcome, _ = self.box.run(f"python3 {TEST}", self.tree)
        if outcome.stopped:
            return STOPPED[outcome.stopped]
        text = outcome.output.rstrip()
        return text.splitlines()[-1] if not outcome.ok and text else text or "all tests pass"

    def _judged(self) -> bool:
        """Runs all test cases in the sandbox and returns whether the code gives the right value in every test case."""
        script = _JUDGE.format(calls=json.dumps(list(self.cases)), mark=_MARK)
        tree = {**self.tree, "judge.py": File(script.encode())}
        outcome, _ = self.box.run("python3 judge.py", tree)
        lines = [line for line in outcome.output.splitlines() if line.startswith(_MARK)]
        if not outcome.ok or len(lines) != 1:
            return False
        try:
            found = json.loads(lines[0].removeprefix(_MARK))
        except ValueError:
            return False
        return bool(found == list(self.cases.values()))
