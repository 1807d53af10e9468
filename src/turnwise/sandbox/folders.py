"""What the back ends share: folders on the host, and which interpreter a sandbox can have."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def interpreter(python: str | None, by_nobody: bool) -> tuple[str, list[str]]:
    """An interpreter that the sandbox may run, and the folders that it needs beside /usr."""
    own = [str(Path(p).resolve()) for p in (sys.prefix, sys.base_prefix)]
    if python is not None and Path(python).resolve() != Path(sys.executable).resolve():
        return python, [] if python.startswith("/usr/") else [str(Path(python).resolve().parents[1])]
    if by_nobody and not all(_open_to_all(Path(place)) for place in own):
        return "/usr/bin/python3", []
    return sys.executable, sorted({place for place in own if not place.startswith("/usr/") and place != "/usr"})


def remove(folder: Path) -> None:
    """A folder and all below it, however deep and whatever its modes."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        subprocess.run(["chmod", "-R", "u+rwX", str(folder)], check=False, capture_output=True)
        subprocess.run(["rm", "-rf", "--", str(folder)], check=False, capture_output=True)


def _open_to_all(place: Path) -> bool:
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (place, *place.parents))
