"""sandlock: Landlock and seccomp, where namespaces are not to be had. A package of pip, no rights needed, Linux 6.7 or newer.

What differs from bubblewrap: a command sees the real path of its work folder and the numbers of other processes; a Python state
is the list of its snippets, which are run again before the next one, so that a snippet costs a start of the interpreter.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from turnwise.sandbox.base import Limits, Outcome, SandboxFault, Stop
from turnwise.sandbox.folders import interpreter, refused, remove
from turnwise.sandbox.python import STATE
from turnwise.sandbox.tree import File, Tree, read_tree, write_tree
from turnwise.sandbox.watch import descendants

INSTALL = "'pip install sandlock' (Linux 6.7 or newer)"
_GRACE = 15.0  # seconds beyond a command's own until a silent keeper is given up


class Sandlock:
    """See :class:`turnwise.sandbox.base.Sandbox`.

    Args:
        limits: of each call.
        python: the interpreter of snippets; None: this one.
    """

    name = "sandlock"

    def __init__(self, limits: Limits | None = None, python: str | None = None) -> None:
        self.limits = limits or Limits()
        self.python_path, self._folders = interpreter(python, by_nobody=False)
        self._keeper: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def shell(self, command: str, tree: Tree) -> tuple[Outcome, Tree]:
        """A command in a fresh folder; see the protocol."""
        if no := refused(command):
            return no, tree
        folder = Path(tempfile.mkdtemp(prefix="turnwise-box-"))
        try:
            write_tree(tree, folder)
            reply = self._ask(
                {
                    "command": command,
                    "folder": str(folder),
                    "readable": self._folders,
                    "path": f"{Path(self.python_path).parent}:/usr/bin:/bin",
                    "limits": asdict(self.limits),
                }
            )
            left, whole = read_tree(folder, self.limits.folder_mib << 20, self.limits.files)
        except OSError as error:  # the host's disk is full, say
            raise SandboxFault(f"the work folder: {error}") from error
        finally:
            remove(folder)
        output = base64.b64decode(reply["output"]).decode("utf-8", "replace")
        stopped: Stop = reply["stopped"] or ("" if whole else "disk")
        return Outcome(output, None if stopped else reply["status"], stopped), left

    def python(self) -> _State:
        """A state with no names."""
        return _State(self, ())

    def close(self) -> None:
        """End the keeper."""
        with self._lock:
            if self._keeper is not None:
                _stop(self._keeper, os.getpid())
                self._keeper = None

    def _ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            if self._keeper is None:
                self._keeper = subprocess.Popen(
                    [sys.executable, "-m", "turnwise.sandbox.keeper"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    start_new_session=True,  # Ctrl-C is for the trainer
                )
                weakref.finalize(self, _stop, self._keeper, os.getpid())
            try:
                return self._exchange(self._keeper, request)
            except (OSError, SandboxFault) as error:
                _stop(self._keeper, os.getpid())
                self._keeper = None
                raise SandboxFault(f"the keeper of sandlock failed: {error}") from error

    def _exchange(self, keeper: subprocess.Popen[bytes], request: Mapping[str, Any]) -> Mapping[str, Any]:
        assert keeper.stdin is not None and keeper.stdout is not None
        keeper.stdin.write(json.dumps(request).encode() + b"\n")
        keeper.stdin.flush()
        end, found = time.monotonic() + self.limits.seconds + _GRACE, b""
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([keeper.stdout], [], [], max(0.0, end - time.monotonic()))
            chunk = os.read(keeper.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                raise SandboxFault("it died" if ready else "it gave no answer")
            found += chunk
        reply: Mapping[str, Any] = json.loads(found)
        if "fault" in reply:
            raise SandboxFault(reply["fault"])
        return reply


@dataclass(frozen=True, slots=True)
class _State:
    """The snippets so far."""

    sandbox: Sandlock
    snippets: tuple[str, ...]

    def run(self, code: str) -> tuple[Outcome, _State]:
        """Run all snippets again, then this one."""
        snippets = (*self.snippets, code)
        try:
            text = json.dumps(snippets, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return Outcome("SyntaxError: the snippet is no UTF-8 text\n", 1), self
        tree: Tree = {"state.py": File(STATE.read_bytes()), "snippets.json": File(text)}
        command = f"exec {self.sandbox.python_path} -I state.py replay snippets.json"
        outcome, _ = self.sandbox.shell(command, tree)
        died = outcome.stopped or (outcome.status or 0) > 128  # run again, it would die again
        return outcome, self if died else replace(self, snippets=snippets)


def reason() -> str | None:
    """Why sandlock cannot work here; None where a command runs."""
    if importlib.util.find_spec("sandlock") is None:
        return "the package sandlock is not installed"
    sandbox = Sandlock(Limits(seconds=10))
    try:
        outcome, _ = sandbox.shell("echo works", {})
    except (SandboxFault, OSError) as error:
        return str(error)
    finally:
        sandbox.close()
    return None if outcome.output == "works\n" else f"a command under it answered {outcome.output.strip()!r}"


def _stop(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a forked copy of the trainer must not end what it does not own
        return
    if process.poll() is None:  # its number may be another's by now
        for pid in list(descendants(process.pid)):  # no keeper adopts what a late one leaves
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        stream.close()  # type: ignore[union-attr]
