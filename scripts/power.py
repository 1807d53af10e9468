"""How many tasks, attempts and seeds a comparison needs to show a difference, from the noise of runs that there are.

python scripts/power.py outputs/pivotrl/tab4/full outputs/pivotrl/tab4/sft --points 5
python scripts/power.py results/turnwise/real/pivotrl results/turnwise/real/sft --points 10 --power 0.9

Each folder has the runs of one row, a run a seed; kept runs of results/ will do. A row of the table says how many tasks
are needed with so many seeds and attempts, each row trained with each seed.
"""

from __future__ import annotations

from math import sqrt

from turnwise.console import Terminal, number
from turnwise.programs import options, program
from turnwise.runs.result_file import read_result
from turnwise_study.power import Attempts, noise
from turnwise_study.runs import RunMetrics, folders_of
from turnwise_study.tables import Table, show

SEEDS, ATTEMPTS = (1, 2, 3, 5, 10), (1, 3, 8)


@program()
def main(arguments: list[str]) -> int:
    parser = options(__doc__)
    add = parser.add_argument
    add("rows", nargs=2, metavar="FOLDER", help="folder with the runs of a row")
    add("--points", type=number(0.01, 100), default=5.0, help="difference to show, percentage points (5)")
    add("--power", type=number(0.01, 0.999), default=0.8, help="probability to show it (0.8)")
    args = parser.parse_args(arguments)
    parts = noise(*map(outcomes, args.rows))
    console = Terminal()
    spreads = {"between tasks": parts.tasks, "between seeds": parts.seeds, "of seeds at single tasks": parts.apart}
    for name, part in {**spreads, "of single attempts": parts.attempts}.items():
        told = "not told apart, counted above" if part is None else f"{100 * sqrt(part):.1f} points"
        console.print(f"standard deviation of the difference {name}: {told}")
    cells = []
    for seeds in SEEDS:
        needed = [parts.tasks_for(args.points, seeds, attempts, args.power) for attempts in ATTEMPTS]
        cells.append([f"{seeds}", *("never" if count is None else f"{count:,}" for count in needed)])
    heads = ["seeds", *(f"attempts: {attempts}" for attempts in ATTEMPTS)]
    title = f"Tasks to show {args.points:g} points with probability {args.power:g} at 95 %"
    show([Table(title, heads, cells, ["never: the seeds alone differ too much"])], console)
    return 0


def outcomes(folder: str) -> list[Attempts]:
    found = (RunMetrics(path, read_result(path)).outcomes("in_domain.sampled.after") for path in folders_of([folder]))
    return [scored[""] for scored in found if scored]


if __name__ == "__main__":
    raise SystemExit(main())
