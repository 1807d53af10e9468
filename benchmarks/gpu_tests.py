"""Runs the tests that are marked `gpu` and counts them in one JSON object on the last line of the output.

python benchmarks/gpu_tests.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("passed", "failed", "errors", "skipped")


def main() -> int:
    holding = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text(encoding="utf-8")]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider", *map(str, sorted(holding))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr, sep="\n")
    if done.returncode:
        print(done.stdout[-1500:], file=sys.stderr)
    said = {kind: re.search(rf"(\d+) {kind.rstrip('s')}s?\b", done.stdout) for kind in KINDS}
    counts = {kind: int(match[1]) if match else 0 for kind, match in said.items()}
    files = [str(path.relative_to(ROOT)) for path in sorted(holding)]
    found: dict[str, object] = {"benchmark": "tests", **counts, "files": files}
    if counts["skipped"] and not any(counts[kind] for kind in KINDS if kind != "skipped"):
        found["not_here"] = f"no CUDA device: all {counts['skipped']} tests were skipped"
    print(json.dumps(found))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
