"""Measures the cost of a sandboxed command and of a sandboxed Python snippet: python benchmarks/sandbox.py

It reports milliseconds of wall-clock time: for a shell command in a folder of ten files, for a Python snippet, before
which a fresh interpreter repeats an earlier one, and for the command without a sandbox. ``*_cpu_ms`` is the processor
time of a call in all its processes. `make escapes` tries to get out of the sandbox. The last line is one JSON object.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable
from statistics import median

from common import finish, positive, program, show
from turnwise_worlds.sandbox.folder_value import folder_tree
from turnwise_worlds.sandbox.sandbox import open_sandbox


def costs(run: Callable[[], object], calls: int) -> list[float]:
    """Returns the milliseconds of wall-clock time of each call, after a warm-up call that is not timed."""
    run()
    found = []
    for _ in range(calls):
        began = time.perf_counter()
        run()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def processor_ms(run: Callable[[], object], calls: int) -> float:
    """Returns the milliseconds of processor time of a call whose processes have ended when the call returns."""

    def spent() -> float:
        both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in both)

    began = spent()
    for _ in range(calls):
        run()
    return (spent() - began) * 1e3 / calls


def main() -> None:
    parser = program(__doc__)
    parser.add_argument("--calls", type=positive, default=200, help="number of timed calls of each kind (200)")
    args = parser.parse_args()
    tree = folder_tree({f"folder/{i}.txt": "a line\n" * 20 for i in range(10)})
    sandbox = open_sandbox()
    plain = ["/bin/bash", "-c", "cat folder/1.txt"]
    kinds: dict[str, Callable[[], object]] = {
        "shell": lambda: sandbox.shell("cat folder/1.txt", tree),
        "python": lambda: sandbox.python(("x = list(range(1000))",), "sum(x)"),
        "unsandboxed": lambda: subprocess.run(plain, check=False, capture_output=True),
    }
    taken = {name: costs(run, args.calls) for name, run in kinds.items()}
    found = {f"{name}_ms": round(median(values), 2) for name, values in taken.items()}
    found |= {f"{name}_cpu_ms": round(processor_ms(kinds[name], args.calls), 2) for name in ("shell", "python")}
    sandbox.close()
    rows = [[name, f"{median(values):.2f}", f"{min(values):.2f}"] for name, values in taken.items()]
    show(f"{sandbox.name}, {args.calls} calls", ["call", "median, ms", "fastest, ms"], rows)
    finish("sandbox", args, found, {"backend": sandbox.name})


if __name__ == "__main__":
    main()
