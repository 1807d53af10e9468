"""Writes demonstrated turns as pivot rows of NeMo Gym, with the pass rates that a run has profiled (docs/data.md).

python scripts/export_pivots.py demos.jsonl --run outputs/pivotrl/seed0 --out pivots.jsonl
python scripts/export_pivots.py rows.jsonl --run outputs/pivotrl/seed0 --all --out rated.jsonl

The input file holds trajectories or pivot rows, as data.file does. With --run, one row is written for each turn that
the run trains on, with its pass rate. With --all, one row is written for every turn of the file; turns without a
profile have no pass rate. A pivot row keeps all its keys. Every row is checked against the rules for pivot rows. The
last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet as pq

from turnwise.data.foreign import structured_text
from turnwise.data.pivot_rows import ACTION, AGENT_NAME, check_row, is_row, rated, row_of
from turnwise.data.read_records import UnusableError, read_records
from turnwise.data.steps import steps_of
from turnwise.data.trajectories import parse_trajectory
from turnwise.errors import InputError
from turnwise.files import atomic_write, refuse_same
from turnwise.programs import options, program
from turnwise.types import Pivot

SHOWN = 20  # greatest number of places that are listed for one reason; all places are counted


class Rates:
    """The pass rate of each state that a run has profiled, by the state's id."""

    def __init__(self, path: Path) -> None:
        """Reads the profile of a run. Raises InputError if there is no profile, or it cannot be read."""
        self._rates: dict[str, tuple[Pivot, bool]] = {}
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=["state_id", "rewards", "kept"]):
                    for row in batch.to_pylist():
                        passed = sum(reward >= 1 for reward in row["rewards"])
                        self._rates[row["state_id"]] = Pivot(passed, len(row["rewards"])), bool(row["kept"])
        except FileNotFoundError as error:
            raise InputError(
                f"{path}: this file does not exist; give with --run the folder of a run with states=pivots"
            ) from error
        except (OSError, KeyError, pyarrow.ArrowException) as error:
            raise InputError(f"{path}: the profile cannot be read ({error})") from error

    def __call__(self, state_id: str) -> tuple[Pivot, bool]:
        """Returns the pass rate of a state, and whether the run trains on that state."""
        return self._rates.get(state_id, (Pivot(), False))


@dataclass
class Export:
    """Reads a file's records, yields pivot rows, and counts what is left out.

    Attributes:
        rates: the profile of a run. None: no row gets a pass rate, and all turns are written.
        every: whether turns that the run does not train on are also written.
        agent: name of the agent in every row. None: pivot rows keep the agent that they name.
        counts: number of records ``read``, of rows ``written``, ``with_pass_rate`` and ``messages``, of turns
            ``not_kept``.
        problems: reason -> places of the records that cannot become a row.
    """

    rates: Callable[[str], tuple[Pivot, bool]] | None
    every: bool
    agent: str | None
    counts: Counter[str] = field(default_factory=Counter)
    problems: dict[str, list[str]] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def rows(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yields the rows of a file in the order of the file. Raises InputError if the file cannot be read."""
        for source, record in read_records(path, key="the command"):
            self.counts["read"] += 1
            try:
                trajectory = parse_trajectory(record, source)
                said = structured_text(trajectory.messages, trajectory.tools)
                steps = steps_of(replace(trajectory, messages=said))
            except UnusableError as error:
                self._leave_out(source, error)
                continue
            for step in steps:
                rate, kept = self.rates(step.id) if self.rates else (trajectory.pivot or Pivot(), True)
                if not (kept or self.every):
                    self.counts["not_kept"] += 1
                    continue
                try:
                    if is_row(record):
                        row = rated(record, self.agent, rate)
                    else:
                        row = row_of(step, trajectory, self.agent or AGENT_NAME, rate)
                    check_row(row)
                except UnusableError as error:
                    self._leave_out(source, error)
                    continue
                self.counts["written"] += 1
                self.counts["with_pass_rate"] += "pass_rate_total" in row
                self.counts["messages"] += row[ACTION]["type"] == "message"
                yield row

    def _leave_out(self, source: str, error: UnusableError) -> None:
        self.problems.setdefault(error.reason, []).append(source)
        self.first.setdefault(error.reason, f"{source}: {error}")


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 2 a file or option cannot be used, or no row could be written."""
    args = parser().parse_args(arguments)
    if args.out.suffix != ".jsonl":
        raise InputError(f"--out {args.out}: name a file that ends in .jsonl")
    refuse_same(args.out, [args.file])
    export = Export(Rates(args.run / "profile.parquet") if args.run else None, args.all, args.agent)
    with atomic_write(args.out) as part:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for row in export.rows(args.file):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        if not export.counts["written"]:
            told = "".join(f"\n  {first}" for first in export.first.values())
            left = (
                f"; {export.counts['not_kept']} turns on which the run does not train are left out (--all writes them)"
            )
            raise InputError(f"{args.file}: there is no row to write{left if export.counts['not_kept'] else ''}{told}")
    for reason, first in export.first.items():
        print(f"left out: {reason} ({len(export.problems[reason])} times); the first case is {first}", file=sys.stderr)
    if messages := export.counts["messages"]:
        print(
            f"{messages} rows expect a message as the action; their verifier accepts any reply without a tool call",
            file=sys.stderr,
        )
    reasons = {name: {"count": len(places), "places": places[:SHOWN]} for name, places in export.problems.items()}
    counts = {name: export.counts[name] for name in ("read", "written", "with_pass_rate", "messages", "not_kept")}
    print(json.dumps(counts | {"left_out": reasons, "out": str(args.out)}))
    return 0


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add: Any = parser.add_argument
    add(
        "file",
        type=Path,
        help="file of trajectories or pivot rows: .jsonl, .ndjson, .json (lines or an array) or .parquet",
    )
    add("--run", type=Path, help="folder of a run on that file; the pass rates are taken from its profile")
    add("--all", action="store_true", help="write all turns, and not only those that the run trains on")
    add("--agent", help=f"name of the agent in every row (default: that of the row, else {AGENT_NAME})")
    add("--out", type=Path, required=True, help="the .jsonl file to write; it is written completely or not at all")
    return parser


if __name__ == "__main__":
    sys.exit(main())
