"""Records how a run was made: its command, commit, versions of libraries and machine."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from turnwise.experiments.jobs import typed

OF_A_RUN = (":/src", ":/conf", ":/scripts", ":/train.py")  # git pathspecs of the files that a run's result depends on


LIBRARIES = ("turnwise", "torch", "lightning", "transformers", "peft", "hydra-core")


def provenance() -> dict[str, Any]:
    """Returns the command, commit, versions of libraries and machine of this run, and the current time."""
    return {
        "command": command(),
        "commit": commit(),
        "versions": {name: _version(name) for name in LIBRARIES},
        "machine": machine(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def command(resumes: bool = False) -> str:
    """Returns this process's command line as typed. With ``resumes``, the argument ``fresh=...`` is left out, so that
    the command resumes the run.
    """
    given = [word for word in typed(sys.argv[1:]) if not (resumes and word.lower().startswith("fresh="))]
    return shlex.join(["python", sys.argv[0], *given])


@cache
def commit() -> str:
    """Returns the commit of the git checkout, followed by ``+`` if code or configuration has uncommitted changes, or an
    empty text outside a checkout. Later calls return the value of the first call.
    """
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--", *OF_A_RUN], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def machine() -> str:
    """Returns the name of the processor and, on Linux, the number of cores."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        name = f"{models[0]}, {len(models)} cores" if models else name
    return name


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
