"""A disk that can be as small as a test wants."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Disk:
    """A small file system in memory, seen only by the processes that run on it; it goes when it is closed."""

    def __init__(self, at: Path, kilobytes: int) -> None:
        mount = f"mount -t tmpfs -o size={kilobytes}k none {at} && echo mounted && exec cat"
        pipe = subprocess.PIPE
        self.holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount], stdin=pipe, stdout=pipe, stderr=pipe
        )
        assert self.holder.stdout is not None
        self.mounted = self.holder.stdout.readline() == b"mounted\n"
        self.path = Path(f"/proc/{self.holder.pid}/root{at}")  # the same folder, as this process sees it
        self.at = at

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "--target", str(self.holder.pid), "--user", "--preserve-credentials", "--mount", "--"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
        return subprocess.run(
            [*enter, *command], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )

    def resize(self, kilobytes: int) -> None:
        done = self.run("mount", "-o", f"remount,size={kilobytes}k", str(self.at))
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        self.holder.communicate()
