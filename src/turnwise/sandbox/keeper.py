"""Runs one command after the other under sandlock, as a process of its own: ``python -m turnwise.sandbox.keeper``.

sandlock has no process namespace, so what a command leaves running is found another way: the keeper adopts all orphans below it
and kills them before it answers. It also keeps sandlock's threads out of the trainer.

Requests and replies are JSON lines on standard input and output.
"""

from __future__ import annotations

import base64
import ctypes
import json
import math
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from turnwise.sandbox.base import Limits, SandboxFault
from turnwise.sandbox.watch import descendants, watch

_ADOPT = 36  # PR_SET_CHILD_SUBREAPER
_WALL = 0x40000000  # __WALL: children of every kind
_SWEEP = 5  # seconds for what was killed to be gone
_READABLE = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/dev/urandom",
)


class _Command:
    """A command under sandlock, with the few things that ``watch`` asks of a process."""

    def __init__(self, command: str, folder: Path, readable: list[str], path: str, limits: Limits) -> None:
        import sandlock

        bounds = {
            "c": 0,
            "f": limits.file_mib * 1024,
            "t": math.ceil(limits.seconds) + 1,
            "v": limits.memory_mib * 1024,
        }
        script = "ulimit " + " ".join(f"-{key} {value}" for key, value in bounds.items()) + "\nexec 2>&1\n" + command
        box = sandlock.Sandbox(
            fs_readable=[place for place in (*_READABLE, *readable) if Path(place).exists()],
            fs_writable=[str(folder), "/dev/null", "/dev/zero"],
            max_memory=limits.memory_mib << 20,
            max_processes=limits.processes,
            extra_deny_syscalls=["memfd_create"],  # memory that belongs to no process
            max_open_files=256,
            no_coredump=True,
            clean_env=True,
            env={"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", "TZ": "UTC"}
            | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
            cwd=str(folder),
        )
        mode = sandlock.StdioMode
        self._process = box.popen(["/bin/bash", "-c", script], stdin=mode.NULL, stdout=mode.PIPED, stderr=mode.NULL)
        assert self._process.pid is not None and self._process.stdout is not None
        self.pid: int = self._process.pid
        self.stdout = self._process.stdout
        self.status: int | None = None

    def members(self) -> list[int]:
        return [pid for pid in descendants(os.getpid()) if pid != os.getpid()]

    def end(self) -> None:
        """Kill all processes below the keeper, again and again until the kernel says that it has no child.

        No listing proves that: it is read thread by thread, and what is handed on meanwhile is in none of the parts.
        """
        deadline = time.monotonic() + _SWEEP
        self._strike(deadline)
        result = self._process.wait(_SWEEP)
        died = 128 + (result.signal if result.signal > 0 else signal.SIGKILL)  # sandlock kills what passes its limits
        self.status = result.exit_code if result.exit_code >= 0 and result.signal < 0 else died
        deadline = time.monotonic() + _SWEEP
        while _reap():  # orphans come here when their parents are gone
            if time.monotonic() > deadline:
                raise SandboxFault(f"what a command started and was killed did not end within {_SWEEP} s")
            self._strike(deadline)
            time.sleep(0.001)

    def _strike(self, deadline: float) -> None:
        """Stop what runs until it is all stopped (what is stopped still counts, so a bomb has no room), then kill it."""
        stopped: set[int] = set()
        while (fresh := set(self.members()) - stopped) and time.monotonic() < deadline:
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            stopped |= fresh
        for pid in stopped:
            _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _reap() -> bool:
    """Take leave of the dead; whether a child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG | _WALL)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**request["limits"])
    folder = Path(request["folder"])
    try:
        command = _Command(request["command"], folder, request["readable"], request["path"], limits)
    except Exception as error:
        return {"fault": f"{type(error).__name__}: {error}"}
    try:
        seen = watch(command, limits, folder)
    except SandboxFault as fault:
        return {"fault": str(fault)}
    return {"output": base64.b64encode(seen.output).decode(), "stopped": seen.stopped, "status": command.status}


def main() -> None:
    ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
