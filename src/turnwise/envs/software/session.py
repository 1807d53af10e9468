"""A live episode in a repository: search, open, edit, run."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.envs.boxed import STOPPED, Box, cut
from turnwise.envs.calls import Calls, Short, refusal, tool
from turnwise.envs.environment import Step
from turnwise.envs.software.tasks import TEST
from turnwise.sandbox.tree import File, Tree, tree_of
from turnwise.types import Message, Task, ToolCall

TOOLS = (
    tool("search", "Lines of all files that hold a text.", text=("string", "what to look for")),
    tool("open", "A file, its lines numbered.", path=("string", "the file")),
    tool(
        "edit",
        "Replace one line of a file; a text without indentation takes the line's own.",
        path=("string", "the file"),
        line=("integer", "its number"),
        text=("string", "what the line is to be"),
    ),
    tool("run", "Run the tests."),
)
_LIST = 8  # lines that a search shows
_FEW = 3  # lines of a search that has found something: a letter that stands everywhere has not

_MARK = "found: "
# Prints one JSON list: what each call gives, as text. The values to compare with never enter the sandbox.
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


class SoftwareSession:
    """See ``turnwise.envs.environment.Session``. The task is done when every case, shown or held back, comes out right.

    ``found`` says how much of the way to the fault answers have shown: 1 the function that fails, 2 where it stands, 3 its
    faulty line. Who does not know yet which function fails has not found the other two, even if they stand in an answer.
    """

    __slots__ = ("box", "calls", "cases", "done", "fault", "found", "horizon", "shown", "task", "tree", "turns", "won")

    def __init__(self, task: Task, box: Box, calls: Calls, horizon: int, shown: int) -> None:
        try:
            self.tree: Tree = tree_of(task.data["files"])
            self.cases = dict(task.data["cases"])
            self.fault = {key: task.data["fault"][key] for key in ("path", "line", "function")}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"task data: a software task has files, cases and a fault ({error!r})") from None
        self.task, self.box, self.calls, self.horizon, self.shown = task, box, calls, horizon, shown
        self.turns = self.found = 0
        self.won = self.done = False

    def opening(self) -> list[Message]:
        """The tools (not where calls are short, which is left to demonstrations), then the request."""
        files = " ".join(path for path, entry in self.tree.items() if isinstance(entry, File))
        user: Message = {"role": "user", "content": f"repair the code so that the tests pass\nfiles: {files}"}
        if isinstance(self.calls, Short):
            return [user]
        rules = (
            "You repair a repository of Python files. One line is wrong. The task is done as soon as all tests pass."
        )
        return [{"role": "system", "content": f"{rules}\n\n{self.calls.explain()}"}, user]

    def call(self, action: str) -> ToolCall:
        """The call of an action; a short one is ``search TEXT``, ``open PATH``, ``edit PATH LINE TEXT`` or ``run``.

        Raises:
            ToolCallError: there is none, or it does not fit its tool.
        """
        return self.calls.read(action)

    def step(self, action: str) -> Step:
        """Make the action's call; after an edit the cases are tried.

        Raises:
            RuntimeError: the episode is over.
            EnvironmentFault: the sandbox failed.
        """
        if self.done:
            raise RuntimeError(
                f"task {self.task.id}: the episode is over after {self.turns} turns; reset or fork earlier"
            )
        info: dict[str, Any] = {"admissible": True}
        try:
            call = self.call(action)
            observation = getattr(self, f"_{call.name}")(call.arguments)
            shows = self._shows(call, cut(observation, self.shown))
            if shows == 1 or self.found:
                self.found = max(self.found, shows)
            if call.name == "edit":
                self.won = self._judged()
        except ToolCallError as error:
            info["admissible"] = False
            observation = refusal(error)
        self.turns += 1
        self.done = self.won or self.turns >= self.horizon
        return Step(cut(observation, self.shown), float(self.won), self.done, self.won, info)

    def fork(self) -> SoftwareSession:
        """An independent copy: what is shared is never changed in place."""
        return copy.copy(self)

    def admissible(self) -> list[str]:
        """None are listed: texts are free."""
        return []

    def lines(self, path: str) -> list[str]:
        """The lines of a file.

        Raises:
            ToolCallError: there is no such file.
        """
        entry = self.tree.get(path.removeprefix("./"))
        if not isinstance(entry, File):
            raise ToolCallError(f"no file {path[:80]}")
        return entry.content.decode().splitlines()

    def _shows(self, call: ToolCall, answer: str) -> int:
        """What an answer says of the fault; see ``found``."""
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
        """Whether every case comes out right. What the code prints or claims by itself decides nothing."""
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
