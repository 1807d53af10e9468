"""Builds the arguments of ``bwrap``, which decide what a sandbox contains, and chooses its Python interpreter."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from turnwise.errors import InputError
from turnwise.sandbox.sandbox import BOX, Limits

PAGE = 4096  # size in bytes that the smallest file takes in memory
SCRATCH = 16 << 20  # maximum size in bytes of a command's /tmp, and also of its /dev/shm
DISKS = (BOX, "/tmp", "/dev/shm")
"""The file systems to which a command can write, all in memory with a size limit. The first is the work folder."""
_CLOSED = "/closed"  # a folder that only a process with the capability CAP_DAC_READ_SEARCH can enter

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64")


def command_walls(owner: int | None, python: str, folders: Sequence[str], limits: Limits, mark: str) -> list[str]:
    """Returns the command line of a bwrap that runs one shell command in an empty work folder.

    Args:
        owner: id of the user as whom bwrap runs if root started the run; None if another user started the run.
        python: the Python interpreter whose folder comes first on the PATH.
        folders: folders of the host, besides /usr, that code in the sandbox may read.
        limits: the limits of the call, which give the maximum size of the work folder.
        mark: the word by which ``cleanup.py`` recognises the process.
    """
    size = (limits.folder_mib << 20) + limits.files * PAGE
    return [
        *_walls(owner, python, folders, mark),
        *("--proc", "/proc", "--dev", "/dev", "--size", str(SCRATCH), "--tmpfs", "/dev/shm"),
        *("--remount-ro", "/dev/pts", "--remount-ro", "/dev", "--size", str(SCRATCH), "--tmpfs", "/tmp"),
        *("--perms", "0700", "--size", str(size), "--tmpfs", BOX, "--chdir", BOX, "--remount-ro", "/"),
        "--die-with-parent",
    ]


def server_walls(owner: int | None, python: str, folders: Sequence[str], mark: str) -> list[str]:
    """Returns the command line of a bwrap that runs the Python server.

    No file in the server's sandbox can be written, and only process 1 of this sandbox can open /proc.
    """
    proc = f"{_CLOSED}/proc"
    return [
        *_walls(owner, python, folders, mark),
        *("--setenv", "PYTHONSAFEPATH", "1"),  # instead of Python's option -I, which would ignore PYTHONHASHSEED
        *("--cap-add", "CAP_DAC_READ_SEARCH", "--perms", "0000", "--dir", _CLOSED, "--proc", proc, "--chdir", proc),
        *("--dev", "/dev", "--remount-ro", "/dev/pts", "--remount-ro", "/dev", "--remount-ro", "/"),
    ]


def _walls(owner: int | None, python: str, folders: Sequence[str], mark: str) -> list[str]:
    drop = ["setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups"] if owner else []
    system = [*_system()]
    for place in ("/etc/alternatives", "/etc/ld.so.cache"):
        system += ["--ro-bind-try", place, place]
    for place in folders:
        system += ["--ro-bind", place, place]
    variables = {
        "PATH": f"{Path(python).parent}:/usr/bin:/bin",
        "HOME": BOX,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
    return [
        *drop,
        *("bwrap", "--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL"),
        *("--uid", "1000", "--gid", "1000", "--hostname", "box", "--clearenv"),
        *(
            "--setenv",
            "TURNWISE_MARK",
            mark,
            "--unsetenv",
            "TURNWISE_MARK",
        ),  # so the mark is on bwrap's command line but not in the environment of the sandbox
        *[part for name, value in variables.items() for part in ("--setenv", name, value)],
        *("--ro-bind", "/usr", "/usr", *system),
    ]


@cache
def _system() -> tuple[str, ...]:
    """Returns bwrap arguments that make the host's folders ``_SYSTEM`` visible in the sandbox.

    On most systems these folders are links into /usr.
    """
    found: list[str] = []
    for path in (Path("/", name) for name in _SYSTEM):
        if path.is_symlink():
            found += ["--symlink", str(path.readlink()), str(path)]
        elif path.exists():
            found += ["--ro-bind", str(path), str(path)]
    return tuple(found)


def interpreter(python: str | None, by_nobody: bool) -> tuple[str, list[str]]:
    """Returns the path of a Python interpreter that can run in the sandbox, and the folders that it needs besides /usr.

    Args:
        python: the configured interpreter. None: the interpreter of this process if the sandbox may read its files,
            otherwise /usr/bin/python3.
        by_nobody: whether the sandbox runs as the user ``nobody``, who cannot read all folders.
    """
    own = [str(Path(p).resolve()) for p in (sys.prefix, sys.base_prefix)]
    if python is not None and Path(python).resolve() != Path(sys.executable).resolve():
        return python, [] if python.startswith("/usr/") else [str(Path(python).resolve().parents[1])]
    if by_nobody and not all(_open_to_all(Path(place)) for place in own):
        return "/usr/bin/python3", []
    return sys.executable, sorted({place for place in own if not place.startswith("/usr/") and place != "/usr"})


def shown(folder: str) -> str:
    """Returns the absolute path of a folder of the host that code in the sandbox may read.

    Raises:
        InputError: there is no such folder.
    """
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise InputError(f"sandbox: {folder!r} is not a folder; name a folder that commands may read")
    return str(path)


def _open_to_all(place: Path) -> bool:
    return all(folder.stat().st_mode & 0o005 == 0o005 for folder in (place, *place.parents))
