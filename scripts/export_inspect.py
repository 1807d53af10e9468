"""Writes a run's rollouts and evaluations as logs of Inspect, which `inspect view` opens.

python scripts/export_inspect.py outputs/pivotrl/seed0                     writes to outputs/pivotrl/seed0/inspect
python scripts/export_inspect.py outputs/pivotrl/seed0 --to logs --format json

One log holds the recorded training rollouts, further logs hold the held-out attempts and answers before and after
training. Each state, task or question is one sample of a log. Each rollout of a state is one epoch of its sample, with
the messages, the rewards as scores and the number of tokens.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from turnwise.console import until_stopped
from turnwise.programs import options, program
from turnwise.reports.inspect_log import write_logs


@program()
def main(arguments: list[str]) -> int:
    """Runs the program. Returns its exit status: 0 written; 2 there is nothing to write, or the package is missing."""
    args = parser().parse_args(arguments)
    to = args.to or args.run / "inspect"
    for path in write_logs(args.run, to, args.format):
        print(path)
    print(f"Open the logs: inspect view --log-dir {shlex.quote(str(to))}")
    return 0


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("run", type=Path, help="folder of a run, such as outputs/pivotrl/seed0; it need not be finished")
    add("--to", type=Path, metavar="FOLDER", help="folder to which the logs are written (RUN/inspect)")
    add("--format", choices=("eval", "json"), default="eval", help="Inspect's compressed form, or JSON (eval)")
    return parser


if __name__ == "__main__":
    sys.exit(until_stopped(main))
