"""Scores patches on real SWE-bench instances with the benchmark's harness. It needs Docker.

python scripts/score_swebench.py patches.jsonl --model mine --python .venv-swebench/bin/python

Each line of the file is {"instance_id": "...", "model_patch": "..."}. The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from turnwise.data.read_records import UnusableError, read_records
from turnwise.envs.software.swebench import Harness
from turnwise.errors import InputError
from turnwise.programs import options, program


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 scored; 2 a file or option cannot be used, or Docker or swebench is missing."""
    args = parser().parse_args(arguments)
    try:
        harness = Harness(args.dataset, args.split, args.workers, args.timeout, args.python)
    except ValueError as error:
        raise InputError(str(error)) from error
    found = harness.score(read_patches(args.patches), args.model, args.folder)
    for instance, why in found.faults.items():
        print(f"not judged: {instance}: {why}")
    rate = None if found.rate is None else round(100 * found.rate, 2)
    counts = {"resolved": len(found.resolved), "failed": len(found.failed), "faults": len(found.faults), "rate": rate}
    print(json.dumps(counts | {"resolved_ids": found.resolved}))
    return 0


def read_patches(path: Path) -> dict[str, str]:
    """Returns the patch of each instance: instance id -> patch.

    Raises:
        InputError: a line is not a prediction, or an instance occurs twice.
    """
    patches: dict[str, str] = {}
    for source, row in read_records(path, key="the command", kind="file of patches"):
        if isinstance(row, UnusableError):
            raise InputError(f"{source}: {row.what}; {row.remedy}")
        instance, patch = (row.get("instance_id"), row.get("model_patch")) if isinstance(row, dict) else (None, None)
        if not isinstance(instance, str) or not isinstance(patch, str):
            raise InputError(f"{source}: this is not a prediction; write {{'instance_id': text, 'model_patch': text}}")
        if instance in patches:
            raise InputError(f"{source}: {instance} occurs twice; keep one patch for each instance")
        patches[instance] = patch
    return patches


def parser() -> argparse.ArgumentParser:
    usual = Harness()
    parser = options(__doc__)
    add = parser.add_argument
    add("patches", type=Path, help="file of JSON lines with instance_id and model_patch")
    add("--model", default="turnwise", help="name of the model that wrote the patches")
    add(
        "--folder",
        type=Path,
        default=Path("outputs/swebench"),
        help="folder for predictions, logs and the harness's report",
    )
    add("--dataset", default=usual.dataset, help="a data set of the Hugging Face Hub, or a file of instances")
    add("--split", default=usual.split)
    add("--workers", type=int, default=usual.workers, help="number of containers that run at the same time")
    add("--timeout", type=int, default=usual.timeout, help="time limit in seconds for the tests of one instance")
    add("--python", help="the Python interpreter that has swebench (default: this one)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
