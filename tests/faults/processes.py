"""Starts of train.py as real processes for the fault campaign, and which of their processes to kill."""

from __future__ import annotations

import atexit
import ctypes
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"WANDB_MODE": "offline", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
TICK = 0.005  # s between two looks
PATIENCE = 300.0  # s of ticks, after which a start hangs; a campaign that is stopped for a while counts none of it
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def preload() -> None:
    """Import what a run imports, so that a start costs a fork and not ten seconds; the run itself is the whole train.py."""
    import peft
    import transformers.models.qwen3.modeling_qwen3

    import turnwise.training.main

    assert peft and transformers and turnwise


class Start:
    """One start of train.py: a process with a process group of its own, its output in a file."""

    def __init__(self, overrides: list[str], log: Path, cold: bool = False, inside: int | None = None) -> None:
        """``cold``: not forked. ``inside``: a process whose file systems a forked one is to see."""
        self.log = log
        self.pid = _cold(overrides, log) if cold else _forked(overrides, log, inside)
        self.status: int | None = None  # exit status; negative: the signal that ended it
        self.computed = 0.0  # s of processor time, as last looked at

    def running(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is None

    def wait(self, seconds: float) -> bool:
        """Look on for so long; whether it is still running then."""
        for _ in range(max(1, round(seconds / TICK))):
            if not self.running():
                return False
            time.sleep(TICK)
        return True

    def compute(self, seconds: float) -> bool:
        """Look on until it has computed for so long, whatever else the machine does; whether it is still running then."""
        for _ in range(round(PATIENCE / TICK)):
            if not self.running():
                return False
            with suppress(OSError):
                fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
                self.computed = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            if self.computed >= seconds:
                break
            time.sleep(TICK)
        return True

    def kill(self, group: bool = False) -> None:
        if self.running():
            (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def left(self, seconds: float) -> list[int]:
        """Processes of its group that still live so long after it; they should end with it."""
        for _ in range(max(1, round(seconds / TICK))):
            if not (living := _group(self.pid)):
                break
            time.sleep(TICK)
        return living

    def clear(self) -> None:
        """End what it has left of its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def _group(number: int) -> list[int]:
    """Processes of a group that have not ended."""
    living = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
            if int(group) == number and state not in "ZX":
                living.append(int(path.parent.name))
    return living


def descendants(pid: int) -> Iterator[int]:
    """Processes below this one."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in path.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from descendants(child)


def die_with_parent() -> None:
    """A campaign that is killed leaves nothing that runs on."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _cold(overrides: list[str], log: Path) -> int:
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT / "src")}
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *overrides],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            process_group=0,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has no threads
        ).pid


def _enter(pid: int) -> None:
    """See the file systems of that process, as nsenter would."""
    system = ctypes.CDLL(None, use_errno=True)
    for name in ("user", "mnt"):
        space = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        if system.setns(space, 0):
            raise OSError(ctypes.get_errno(), f"the {name} namespace of process {pid}")
        os.close(space)


def _forked(overrides: list[str], log: Path, inside: int | None) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with suppress(OSError):
            os.setpgid(pid, pid)
        return pid
    status = 70
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        if inside is not None:
            _enter(inside)
        die_with_parent()  # after it: a change of user namespace forgets this
        atexit._clear()  # the campaign's are not the run's
        for number, file, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
            os.dup2(os.open(file, flags, 0o644), number)
        os.dup2(1, 2)
        os.environ.update(ENVIRONMENT)
        os.chdir(ROOT)
        sys.argv = [str(ROOT / "train.py"), *overrides]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
            status = 1
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)
