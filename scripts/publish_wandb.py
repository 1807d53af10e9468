"""Publishes finished runs to Weights & Biases: tables, rollouts, files and a report. With --offline it writes a bundle
that `wandb sync` uploads later.

python scripts/publish_wandb.py outputs/pivotrl outputs/sft                    needs a login: wandb login, or WANDB_API_KEY
python scripts/publish_wandb.py outputs/pivotrl outputs/sft --offline          writes a bundle; wandb sync uploads it
python scripts/publish_wandb.py outputs/pivotrl/tab4 --project agents --entity my-team --title "Table 4"
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from turnwise.console import number
from turnwise.errors import InputError
from turnwise.programs import options, program

NOT_LOGGED_IN = (
    "not logged in to Weights & Biases: run `wandb login`, or set WANDB_API_KEY; or give --offline, and upload the bundle "
    "later with `wandb sync`"
)


@program()
def main(arguments: list[str]) -> int:
    """Runs the program. Returns its exit status: 0 done; 1 W&B failed; 2 there is no login, or no finished run.

    Slow libraries are imported after the arguments have been parsed.
    """
    args = parser().parse_args(arguments)
    from wandb.errors import Error as WandbError

    from turnwise.reports.comparison_page import comparison_page
    from turnwise.reports.find_runs import collect
    from turnwise.reports.html_pages import write_page
    from turnwise.reports.publish_wandb import logged_in, publish, report_of
    from turnwise.reports.tables import footer, run_table, to_markdown

    try:
        collection = collect(args.folders)
        refuse_name(args.project)
        if not args.offline and not logged_in():
            raise InputError(NOT_LOGGED_IN)
        tables = [run_table(env, scale, rows, {}) for (env, scale), rows in collection.sections.items()]
        lines = footer(collection, shlex.join(["python", "scripts/publish_wandb.py", *arguments]), None)
        page = args.to / "comparison.html"
        args.to.mkdir(parents=True, exist_ok=True)
        write_page(page, comparison_page(collection, tables, lines))
        published = publish(
            collection, tables, page, args.project, args.entity, args.title, args.to, args.offline, args.rollouts
        )
        if published.url is None:
            print(f"Bundle: {published.folder}\nUpload it later: wandb sync {shlex.quote(str(published.folder))}")
            return 0
        print(f"Run: {published.url}")
        report = report_of(published, args.title, to_markdown(tables, lines))
        if report is None:
            print("Report: none was written; `pip install wandb-workspaces` enables it")
        else:
            report.save()
            print(f"Report: {report.url}")
    except WandbError as error:
        print(f"W&B: {error}", file=sys.stderr)
        return 1
    return 0


def refuse_name(project: str) -> None:
    """Checks the project name before the page is written.

    Raises:
        InputError: W&B would refuse the name.
    """
    from wandb import Settings
    from wandb.errors import UsageError

    try:
        if not project.strip() or not project.isprintable():
            raise UsageError("the name must consist of printable characters")
        Settings(project=project)
    except UsageError as error:
        raise InputError(f"--project {project!r}: {error}") from error


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("folders", nargs="+", type=Path, help="run folders, or folders that contain run folders")
    add("--offline", action="store_true", help="only write the bundle")
    add("--project", default="turnwise", help="W&B project (turnwise)")
    add("--entity", help="W&B user or team (default: the user that is logged in)")
    add("--title", default="Turnwise runs", help="title of the W&B run and of the W&B report")
    add("--to", type=Path, default=Path("outputs/wandb"), metavar="FOLDER", help="folder for bundles (outputs/wandb)")
    add(
        "--rollouts",
        type=number(0, 1e6, whole=True),
        default=200,
        metavar="N",
        help="maximum number of rollouts of each run in the table of rollouts (200)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
