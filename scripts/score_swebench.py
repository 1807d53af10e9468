"""Score patches on real SWE-bench instances with the benchmark's harness, where Docker is there.

python scripts/score_swebench.py patches.jsonl --model mine --python .venv-swebench/bin/python

A line of the file is {"instance_id": "...", "model_patch": "..."}. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from turnwise.data.records import UnusableError, read_records
from turnwise.envs.software.swebench import Harness
from turnwise.errors import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 scored, 2 a file or option cannot be used, or Docker or swebench is not there."""
    args = parser().parse_args(arguments)
    try:
        try:
            harness = Harness(args.dataset, args.split, args.workers, args.timeout, args.python)
        except ValueError as error:
            raise InputError(str(error)) from error
        found = harness.score(read_patches(args.patches), args.model, args.folder)
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for instance, why in found.faults.items():
        print(f"not judged: {instance}: {why}")
    rate = None if found.rate is None else round(100 * found.rate, 2)
    counts = {"resolved": len(found.resolved), "failed": len(found.failed), "faults": len(found.faults), "rate": rate}
    print(json.dumps(counts | {"resolved_ids": found.resolved}))
    return 0


def read_patches(path: Path) -> dict[str, str]:
    """Instance -> patch.

    Raises:
        InputError: a line is none, or an instance stands twice.
    """
    patches: dict[str, str] = {}
    for source, row in read_records(path, key="the command", kind="file of patches"):
        if isinstance(row, UnusableError):
            raise InputError(f"{source}: {row.what}; {row.remedy}")
        instance, patch = (row.get("instance_id"), row.get("model_patch")) if isinstance(row, dict) else (None, None)
        if not isinstance(instance, str) or not isinstance(patch, str):
            raise InputError(f"{source}: no prediction; write {{'instance_id': text, 'model_patch': text}}")
        if instance in patches:
            raise InputError(f"{source}: {instance} stands twice; keep one patch an instance")
        patches[instance] = patch
    return patches


def parser() -> argparse.ArgumentParser:
    """The command line."""
    usual = Harness()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("patches", type=Path, help="JSON lines of instance_id and model_patch")
    add("--model", default="turnwise", help="whose patches they are")
    add("--folder", type=Path, default=Path("outputs/swebench"), help="for predictions, logs and the harness's report")
    add("--dataset", default=usual.dataset, help="of the hub, or a file of instances")
    add("--split", default=usual.split)
    add("--workers", type=int, default=usual.workers, help="containers at once")
    add("--timeout", type=int, default=usual.timeout, help="s for the tests of one instance")
    add("--python", help="the interpreter that has swebench; this one unless named")
    return parser


if __name__ == "__main__":
    sys.exit(main())
