"""Compare finished runs: tables on the terminal, in Markdown, LaTeX and HTML; or hold them against a paper's table.

python scripts/report.py outputs/pivotrl outputs/sft outputs/local
python scripts/report.py outputs/pivotrl/tab1 --paper conf/sweep/pivotrl_tab1.yaml --markdown docs/results.md
python scripts/report.py outputs/pivotrl/seed0 --rebuild
python scripts/report.py outputs/awpo/noise --against judge.noise --figure noise.svg
python scripts/report.py sweep=pivotrl_tab4            what `python train.py sweep=pivotrl_tab4` left, and the paper's claims
python scripts/report.py sweep=pivotrl_tab4 --latex table4.tex --markdown table4.md --html table4.html --figure table4.svg
python scripts/report.py summary --json                every sweep file; the last line counts the verdicts by paper
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from rich.console import Console

from turnwise.analysis.gate_report import Settings, gate_report
from turnwise.errors import InputError
from turnwise.evaluation.stats import mean_interval, paired_mean_difference
from turnwise.papers.jobs import ask
from turnwise.papers.table import sweep_names
from turnwise.reports.compare import Collection, collect
from turnwise.reports.entry_figures import entry_figures, run_folders
from turnwise.reports.html import comparison_figures, comparison_page, tables_page, write_page
from turnwise.reports.latex import to_latex
from turnwise.reports.markdown import write_section
from turnwise.reports.pages import write_pages
from turnwise.reports.paired import differences
from turnwise.reports.paper import PaperTable, read_paper
from turnwise.reports.summary import counted, entry_tables, read_entry, summary_table
from turnwise.reports.svg import Figure, standalone
from turnwise.reports.swept import swept
from turnwise.reports.tables import Table, footer, paper_tables, provenance, run_table, to_markdown, to_rich
from turnwise.sweeps.arguments import is_sweep

CONF = Path(__file__).resolve().parents[1] / "conf"


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 2 when a folder or file cannot be used."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and (arguments[0] == "summary" or is_sweep(arguments)):
        return directions(arguments)
    args = parser().parse_args(arguments)
    console = Console()
    try:
        collection = collect(args.folders)
        papers = [read_paper(path) for path in args.paper]
        collection.notes += strangers(collection, args.paper, papers)
        tables = build_tables(collection, papers)
        tables += differences(collection, args.against, mean_interval) if args.against else []
        lines = footer(collection, command_line(arguments), args.machine)
        for table in tables:
            console.print(to_rich(table))
        console.print(*lines, sep="\n", markup=False, highlight=False)
        drawn = swept(collection, args.against, mean_interval) if args.against else {}
        page = comparison_page(collection, tables, lines, mean_interval, list(drawn.values()), args.html)
        pictures = drawings(args.figure, drawn, collection) if args.figure else {}
        save(args, tables, lines, page, pictures, console)
        for path, figure in pictures.items():
            write_page(path, standalone(figure))
            console.print(f"Figure: {path}", markup=False, highlight=False)
        for folder in collection.folders if args.rebuild else ():
            console.print(f"Report: {write_pages(folder)}", markup=False, highlight=False)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def directions(arguments: list[str]) -> int:
    """``sweep=NAME [scale=...] [key=value ...]`` or ``summary [scale=...] [--json]``, with ``outputs=``, ``data=`` and
    ``gated=``.

    ``outputs`` names folders of runs, the first one that has a run of a row before the next. A summary is one table on the
    terminal; in a file every entry's tables follow it.
    """
    args = sweep_parser().parse_intermixed_args(arguments)
    console = Console() if Console().is_terminal else Console(width=160)  # a pipe has no width of its own
    try:
        options, rest = {"outputs": "outputs,results", "data": "", "gated": ""}, []
        for argument in args.words:
            key, _, value = argument.partition("=")
            if key in options:
                options[key] = value
            else:
                rest.append(argument)
        places = [Path(place) for place in options["outputs"].split(",")]
        gated = Path(options["gated"]) if options["gated"] else None
        gates = gate_report(Path(options["data"]), Settings(), gated) if options["data"] else None
        whole = rest[0] == "summary"
        names = [f"sweep={name}" for name in sweep_names(CONF)] if whole else [""]
        rest = [word for word in rest if word != "summary"]
        asked = [ask([*rest, name] if name else rest, CONF) for name in names]
        entries = [read_entry(one, places, mean_interval, paired_mean_difference, gates) for one in asked]
        every = [table for entry in entries for table in entry_tables(entry, mean_interval)]
        tables = [summary_table(entries)] if whole else every
        for table in tables:
            console.print(to_rich(table))
            console.print(*table.notes, "", sep="\n", markup=False, highlight=False)
        results = [result for entry in entries for result in entry.results]
        lines = provenance(results, command_line(arguments))
        kept = [*tables, *([] if args.brief else every)] if whole else every
        title = "The papers' tables and figures" if whole else entries[0].asked.sweep.title
        pictures = [] if whole else entry_figures(entries[0], mean_interval)
        shown = {args.figure: pictures[0]} if args.figure and pictures else {}
        runs = {} if whole else run_folders(entries[0])
        save(args, kept, lines, tables_page(title, kept, lines, pictures, runs, args.html), shown, console)
        if args.figure and not pictures:
            console.print(
                f"No figure: {args.figure} is not written, for no run here has a number to draw.", markup=False
            )
        for number, picture in enumerate(pictures if args.figure else ()):
            path = args.figure.with_stem(f"{args.figure.stem}-{number + 1}") if number else args.figure
            write_page(path, standalone(picture))
            console.print(f"Figure: {path}", markup=False, highlight=False)
        if args.json:
            print(json.dumps(counted(entries)))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def drawings(path: Path, drawn: dict[str, Figure], collection: Collection) -> dict[Path, Figure]:
    """What ``--figure`` writes, and where: each of several drawn worlds has a file of its own."""
    if len(drawn) > 1:
        return {path.with_stem(f"{path.stem}-{name}"): figure for name, figure in drawn.items()}
    figures = list(drawn.values()) or comparison_figures(collection, mean_interval)
    return {path: figures[0]} if figures else {}


def command_line(arguments: list[str]) -> str:
    """What was typed, for the footer of what is written."""
    return shlex.join(["python", "scripts/report.py", *arguments])


def save(
    args: argparse.Namespace,
    tables: list[Table],
    lines: list[str],
    page: str,
    shown: dict[Path, Figure],
    console: Console,
) -> None:
    """Write the tables in every format that was asked for; Markdown shows the pictures too."""
    if args.markdown:
        titles = {path: figure.title for path, figure in shown.items()}
        write_section(args.markdown, to_markdown(tables, lines), args.section, titles)
        console.print(f"Markdown: {args.markdown}", markup=False, highlight=False)
    if args.latex:
        write_section(args.latex, to_latex(tables, lines))
        console.print(f"LaTeX: {args.latex}", markup=False, highlight=False)
    if args.html:
        write_page(args.html, page)
        console.print(f"Page: {args.html}", markup=False, highlight=False)


def build_tables(collection: Collection, papers: list[PaperTable]) -> list[Table]:
    """A table of runs for each environment and scale, then the papers' numbers beside ours."""
    tables = []
    for (env, scale), rows in collection.sections.items():
        labels = {row.name: paper.rows[key] for paper in papers for row in rows if (key := paper.row_of(row.name))}
        for paper in papers:
            order = {row: place for place, row in enumerate(paper.rows)}
            rows = sorted(rows, key=lambda row: order.get(paper.row_of(row.name) or "", len(order)))
        tables.append(run_table(env, scale, rows, mean_interval, labels))
        for paper in papers:
            tables += paper_tables(paper, rows, mean_interval)
    return tables


def strangers(collection: Collection, paths: list[Path], papers: list[PaperTable]) -> list[str]:
    """A note for each sweep file that none of the runs belongs to."""
    names = [row.name for rows in collection.sections.values() for row in rows]
    return [
        f"{path}: none of these runs is a row of it; its runs are named {', '.join(paper.runs.values())}."
        for path, paper in zip(paths, papers, strict=True)
        if not any(paper.row_of(name) for name in names)
    ]


def parser() -> argparse.ArgumentParser:
    """The command line that names folders."""
    parser = _parser()
    add = parser.add_argument
    add("folders", nargs="+", type=Path, help="run folders, or folders of them such as a sweep's")
    paper = "a file of conf/sweep/ whose table gives the paper's numbers; may be repeated"
    add("--paper", action="append", default=[], type=Path, metavar="SWEEP", help=paper)
    add(
        "--figure",
        type=Path,
        metavar="FILE",
        help="write the drawing of the held-out change to FILE as SVG; --against: FILE-<world>-<scale> for several worlds",
    )
    against = "draw success against this number of the configuration first, such as judge.noise"
    add("--against", metavar="KEY", help=against)
    add("--machine", metavar="TEXT", help="what the runs ran on, where their results do not say")
    add("--rebuild", action="store_true", help="also draw each run's own report.html again")
    return parser


def sweep_parser() -> argparse.ArgumentParser:
    """The command line that names a sweep, or all of them."""
    parser = _parser()
    parser.add_argument("words", nargs="+", metavar="KEY=VALUE", help="summary, or sweep=NAME; then as of train.py")
    parser.add_argument(
        "--figure",
        type=Path,
        metavar="FILE",
        help="sweep=: write its drawing to FILE as SVG, which --markdown then shows; further ones to FILE-2, ...",
    )
    parser.add_argument("--brief", action="store_true", help="summary: no table of single entries in the files")
    parser.add_argument("--json", action="store_true", help="count the verdicts by paper, as the last line")
    return parser


def _parser() -> argparse.ArgumentParser:
    """What both have in common: the files to write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--markdown", type=Path, metavar="FILE", help="write the tables to FILE as Markdown")
    section = "replace only what stands between <!-- table:NAME --> and <!-- /table:NAME --> in the Markdown FILE"
    add("--section", metavar="NAME", help=section)
    add("--latex", type=Path, metavar="FILE", help="write the tables to FILE as LaTeX (booktabs)")
    add("--html", type=Path, metavar="FILE", help="write one self-contained page to FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
