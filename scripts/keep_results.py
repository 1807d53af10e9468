"""Copies the measurements of finished runs. The copies are small enough to be committed, and suffice for every table.

python scripts/keep_results.py outputs/pivotrl outputs/awpo
python scripts/keep_results.py outputs --to /shared/results

A run `outputs/<paper>/...` is copied to the archive `results/<paper>.runs.parquet`: its result, configuration and metrics,
and the outcome of every held-out attempt without its text. `scripts/report.py` unpacks the archive into
`results/<paper>`, and prefers runs in outputs/.
"""

from __future__ import annotations

import sys
from pathlib import Path

from turnwise.errors import InputError
from turnwise.programs import options, program
from turnwise.runs.kept_runs import finished, keep_runs


@program()
def main(arguments: list[str]) -> int:
    """Runs the program. Returns its exit status: 0 done; 2 a run was left out, or there was no run."""
    parser = options(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of runs, or folders that contain such folders")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"), help="folder of all runs (default outputs)")
    parser.add_argument("--to", type=Path, default=Path("results"), help="folder of the archives (default results)")
    args = parser.parse_args(arguments)
    runs = list(finished(args.folders))
    if not runs:
        raise InputError(f"no finished run in {', '.join(map(str, args.folders))}; give folders of finished runs")
    archives, errors = keep_runs(runs, args.outputs, args.to)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"{len(runs) - len(errors)} of {len(runs)} runs kept in {', '.join(map(str, archives)) or 'no archive'}")
    return 2 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
