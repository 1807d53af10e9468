"""Measures the cost of a sandboxed command and of a sandboxed Python snippet, and tries to escape from the sandbox.

python benchmarks/sandbox.py

It reports milliseconds of wall-clock time: for a shell command in a folder of ten files, a Python snippet, before which
a fresh interpreter repeats an earlier one (``python_ms``), and the command without a sandbox. ``load`` is the load of the
machine. ``*_cpu_ms`` is the processor time of a call in all its processes. ``escapes`` counts how many of ten ways to
escape succeed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from turnwise.training.evaluate import machine
from turnwise_worlds.sandbox.folder_value import File, tree_of
from turnwise_worlds.sandbox.sandbox import Bubblewrap, Limits, open_sandbox

TARGETS = {"shell_ms": 15.0}
LOW = Limits(seconds=1.5, memory_mib=160, processes=16, file_mib=2, folder_mib=4, files=200, output_kib=16)
_MIB = 1 << 20


def costs(run: Callable[[], object], calls: int) -> list[float]:
    """Returns the milliseconds of wall-clock time of each call, after a warm-up call that is not timed."""
    run()
    found = []
    for _ in range(calls):
        began = time.perf_counter()
        run()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def commands_cpu(run: Callable[[], object], calls: int) -> float:
    """Returns the milliseconds of processor time of a call whose processes have ended when the call returns."""
    began = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    for _ in range(calls):
        run()
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    spent = sum(b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime for a, b in zip(began, ended, strict=True))
    return spent * 1e3 / calls


def escapes(sandbox: Bubblewrap) -> Mapping[str, bool]:
    """Returns for each way to escape whether it succeeded. ``sandbox`` should have low limits."""

    def shell(command: str) -> str:
        return sandbox.shell(command, {})[0].output

    def within(command: str) -> bool:
        began = time.monotonic()
        sandbox.shell(command, {})
        return time.monotonic() - began < LOW.seconds + 10

    def alive(mark: str) -> bool:
        lines = []
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                lines.append(place.read_bytes())
            except OSError:
                continue
        return any(mark.encode() in line for line in lines)

    mark = f"turnwise-benchmark-{os.getpid()}"
    with tempfile.TemporaryDirectory() as outside, socket.create_server(("127.0.0.1", 0)) as server:
        secret = Path(outside, "secret")
        secret.write_text(mark)
        Path(outside).chmod(0o777)
        port = server.getsockname()[1]
        left = sandbox.shell("for i in $(seq 400); do head -c 1M /dev/zero > $i; done", {})[1]
        return {
            "home": mark in shell(f"cat {secret}; ls {Path.home()}; cat {Path(__file__).resolve()}"),
            "write": bool(shell(f"touch {outside}/new") and Path(outside, "new").exists()),
            "network": "reached" in shell(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"),
            "fork_bomb": not within(f"f() {{ f | f & }}; f; sleep 60 # {mark}") or alive(mark),
            "memory_bomb": sandbox.shell("python3 -c 'x = bytearray(2 << 30)'", {})[0].ok,
            "disk": sum(len(e.content) for e in left.values() if isinstance(e, File)) > LOW.folder_mib * _MIB,
            "output": len(shell("yes")) > LOW.output_kib << 10,
            "loop": not within("while :; do :; done"),
            "background": bool(shell(f"setsid bash -c 'sleep 60 # {mark}' > /dev/null 2>&1 & echo")) and alive(mark),
            "kill_parent": killed(shell),
        }


def killed(shell: Callable[[str], str]) -> bool:
    """Returns whether a command can kill a process of the host."""
    with subprocess.Popen(["sleep", "60"]) as victim:
        shell(f"kill -9 {victim.pid}; kill -9 $PPID; kill -9 -1")
        dead = victim.poll() is not None
        victim.kill()
    return dead


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--calls", type=int, default=200, help="number of timed calls of each kind (200)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the last line to FILE")
    args = parser.parse_args()
    if args.calls < 1:
        parser.error(f"--calls: must be at least 1, got {args.calls}")

    tree = tree_of({f"folder/{i}.txt": "a line\n" * 20 for i in range(10)})
    sandbox = open_sandbox()
    state = sandbox.python().run("x = list(range(1000))")[1]
    plain = ["/bin/bash", "-c", "cat folder/1.txt"]
    measured = {
        "shell_ms": costs(lambda: sandbox.shell("cat folder/1.txt", tree), args.calls),
        "python_ms": costs(lambda: state.run("sum(x)"), args.calls),
        "unsandboxed_ms": costs(lambda: subprocess.run(plain, check=False, capture_output=True), args.calls),
    }
    cpu = {
        "shell_cpu_ms": commands_cpu(lambda: sandbox.shell("cat folder/1.txt", tree), args.calls),
        "python_cpu_ms": commands_cpu(lambda: state.run("sum(x)"), args.calls),
    }
    sandbox.close()
    hasty = open_sandbox(LOW)
    tried = escapes(hasty)
    hasty.close()

    table = Table(title=f"{sandbox.name}, {args.calls} calls", title_justify="left")
    for name in ("call", "median, ms", "fastest, ms", "target, ms"):
        table.add_column(name)
    for name, values in measured.items():
        table.add_row(name, f"{median(values):.2f}", f"{min(values):.2f}", str(TARGETS.get(name, "")))
    console = Console()
    console.print(table)
    console.print("got out: " + (", ".join(name for name, out in tried.items() if out) or "nothing"))
    result = {
        "benchmark": "sandbox",
        "backend": sandbox.name,
        **{name: round(median(values), 2) for name, values in measured.items()},
        **{f"{name}_fastest": round(min(values), 2) for name, values in measured.items()},
        **{name: round(value, 2) for name, value in cpu.items()},
        "escapes": sum(tried.values()),
        "tried": list(tried),
        "setting": {"calls": args.calls},
        "machine": machine(),
        "load": round(os.getloadavg()[0], 2),
    }
    line = json.dumps(result)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(line + "\n", encoding="utf-8")
    print(line, flush=True)


if __name__ == "__main__":
    main()
