"""Runs of train.py as processes of their own that begin with its modules loaded, which halves the time of a small run.

Python's fork server loads the modules once for each process of tests. A run with ``trainer.devices=2`` has a second such process,
unless the test wants Lightning to start it. tests/unit/test_train_cli.py starts train.py as a command.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# metrics that two starts of one run do not share; `engine/` is counted by each start for itself
CLOCKS = ("time", "seconds/", "cpu/", "rollout/tokens_per_s", "predictor/share", "engine/", "judge/wait")
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["turnwise.training.loop", "transformers.models.qwen3.modeling_qwen3"])


class Run:
    """A started run, with the methods of :class:`subprocess.Popen` that the tests use. It leads a group of processes.

    Args:
        overrides: the words of the command line.
        lightning: Lightning starts the processes of a run that has several, as it does for a user.
    """

    def __init__(self, overrides: Sequence[str], lightning: bool = False) -> None:
        self._files = [tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2)]  # noqa: SIM115 - read at the end
        names = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in self._files]
        self._process = _SERVER.Process(target=_train, args=(list(overrides), *names, lightning))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end, and returns what was written to the output and to the errors.

        Raises:
            subprocess.TimeoutExpired: the run has not ended.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("train.py", timeout or 0.0)
        texts = []
        for file in self._files:
            file.seek(0)
            texts.append(file.read())
        return texts[0], texts[1]


def _train(overrides: list[str], output: str, errors: str, lightning: bool) -> None:
    """What the new process does: it becomes ``python train.py OVERRIDES`` with its output in these files."""
    os.setsid()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs, and what they start, ignore it
    for name, number in ((output, 1), (errors, 2)):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(PYTHONPATH=str(ROOT / "src"), OMP_NUM_THREADS="1", WANDB_MODE="offline")
    sys.argv = [str(ROOT / "train.py"), *overrides]
    second = 0 if lightning or "trainer.devices=2" not in overrides else _two_processes()
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a process of the fork server ends without calling them
    if second:
        assert os.waitpid(second, 0)[1] == 0, "the second process has failed"


def _two_processes() -> int:
    """Forks the second process of a run, which ends with this one, and gives both the variables by which Lightning sees that they
    have been started; the id of the second, 0 in the second itself.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    second = os.fork()
    if not second:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a process alone would wait for the other one
    os.environ["LOCAL_RANK"] = "0" if second else "1"
    return second
