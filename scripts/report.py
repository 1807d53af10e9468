"""Compares finished runs with each other or with a paper: tables on the terminal, in Markdown and HTML.

report.py FOLDER ...                    runs side by side
report.py sweep=NAME [KEY=VALUE ...]    a table or figure of a paper (conf/sweep/), and its claims
report.py summary [KEY=VALUE ...]       all tables and figures, one line each; with paper=NAME only those of one paper

python scripts/report.py outputs/pivotrl outputs/sft outputs/local
python scripts/report.py outputs/pivotrl/seed0 --rebuild
python scripts/report.py sweep=pivotrl_tab4            the runs of `python train.py sweep=pivotrl_tab4`, and the paper's claims
python scripts/report.py sweep=pivotrl_tab4 --markdown table4.md --html table4.html --figure table4.svg
python scripts/report.py sweep=pivotrl_tab4 rows=full,sft seed=0 outputs=results
python scripts/report.py summary paper=awpo

keys of the last two forms:
  scale=tiny|paper   only runs of this scale (default tiny)
  rows=A,B           only these rows; only with sweep=
  seed=0,1           only these seeds (default: the sweep's)
  paper=NAME         only the entries of one paper: pivotrl, awpo, trace, selective, turnwise (ours); only with summary
  outputs=A,B        folders of runs; a row is read from the first folder that has a run of it (default outputs,results)
  KEY=VALUE          an override that the runs were started with, as for train.py
"""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import track

from turnwise.config.overrides import is_sweep
from turnwise.console import Terminal, sized, until_stopped
from turnwise.errors import InputError, refuse_twice
from turnwise.programs import program
from turnwise.runs.archive import opened
from turnwise.runs.figures import Figure, standalone
from turnwise.runs.page import write_page, write_pages
from turnwise_study.comparison import comparison_table, provenance, runs_to_compare
from turnwise_study.entries import read_entry
from turnwise_study.entry_figures import entry_figures
from turnwise_study.entry_tables import entry_tables, summary_table
from turnwise_study.run_metrics import folders_of
from turnwise_study.sweeps.jobs import read_sweep_request
from turnwise_study.sweeps.run_sweep import RowHashes
from turnwise_study.sweeps.sweep_file import sweep_names
from turnwise_study.tables import Table, show, tables_page, to_markdown, write_section

CONF = Path(__file__).resolve().parents[1] / "conf"


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 2 an argument is unusable."""
    args = parser().parse_intermixed_args(arguments)
    if args.figure and args.figure.suffix.lower() != ".svg":
        raise InputError(f"--figure {args.figure}: figures are written as SVG; give a file name that ends in .svg")
    command = shlex.join(["python", "scripts/report.py", *arguments])
    if "summary" in args.words or is_sweep(args.words):
        directions(args, command)
    else:
        compare(args, command)
    return 0


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("words", nargs="+", metavar="FOLDER | KEY=VALUE", help="folders of runs, or a sweep or summary, as above")
    add("--markdown", type=Path, metavar="FILE", help="write the tables to FILE as Markdown")
    add("--section", metavar="NAME", help="replace only the text between the marks of table:NAME in the Markdown FILE")
    add("--html", type=Path, metavar="FILE", help="write one self-contained page to FILE")
    add("--figure", type=Path, metavar="FILE", help="sweep: write the figures to FILE, FILE-2, ... as SVG")
    add("--rebuild", action="store_true", help="folders: also write the report.html of every run again")
    add("--brief", action="store_true", help="summary: write no tables of single entries to the files")
    return parser


def compare(args: argparse.Namespace, command: str) -> None:
    """Compares the runs of some folders side by side."""
    refuse_strangers(args, ("brief", "figure"), "folders")
    for folder in folders_of(args.words) if args.rebuild else ():
        print(f"Report: {write_pages(folder)}")
    found = runs_to_compare(args.words)
    tables = [comparison_table(env, scale, rows) for (env, scale), rows in found.sections.items()]
    lines = [*provenance([run.result for run in found.runs], command), *found.notes]
    show(tables, sized(160))
    print(*lines, sep="\n")
    save(args, f"{len(found.runs)} runs compared", tables, lines, [])


def directions(args: argparse.Namespace, command: str) -> None:
    """Reports on one sweep, or on all sweeps. For all sweeps, the terminal shows one summary table; a file also gets
    the tables of every entry.
    """
    whole = "summary" in args.words
    refuse_strangers(args, ("rebuild",), "sweep=NAME and summary")
    refuse_strangers(args, ("figure",) if whole else ("brief",), "summary" if whole else "sweep=NAME")
    refuse_twice(args.words)
    own = {key: value for key, _, value in (word.partition("=") for word in args.words)}
    rest = [word for word in args.words if word.partition("=")[0] not in ("outputs", "paper", "summary")]
    paper = own.get("paper")
    if paper and not whole:
        raise InputError(f"paper={paper}: this key can only be used with summary")
    names = [name for name in sweep_names(CONF) if paper in (None, name.partition("_")[0])]
    if not names:
        papers = sorted({name.partition("_")[0] for name in sweep_names(CONF)})
        raise InputError(f"paper={paper}: this paper is unknown; choose one of {', '.join(papers)}")
    requests = (
        [read_sweep_request([*rest, f"sweep={name}"], CONF) for name in names]
        if whole
        else [read_sweep_request(rest, CONF)]
    )
    places, hashes, err = places_of(own.get("outputs")), RowHashes(CONF), Terminal(stderr=True)
    seen = track(requests, "Reading", console=err, transient=True, disable=not (whole and err.is_terminal))
    entries = [read_entry(one, places, hashes) for one in seen]
    refuse_seeds(requests[0].seeds or (), {result.seed for entry in entries for result in entry.results}, places)
    written = bool(args.markdown or args.html) and not args.brief
    tables = [table for entry in (entries if written or not whole else []) for table in entry_tables(entry)]
    tables = [summary_table(entries), *tables] if whole else tables
    show(tables[:1] if whole else tables, sized(160))
    lines = provenance([result for entry in entries for result in entry.results], command)
    figures = entry_figures(entries[0]) if not whole and (args.figure or args.html) else []
    save(args, "The papers' tables and figures" if whole else requests[0].sweep.title, tables, lines, figures)


def refuse_strangers(args: argparse.Namespace, names: Sequence[str], form: str) -> None:
    """Raises InputError if an option in ``names`` was given, which this form of the command does not take."""
    if given := next((name for name in names if getattr(args, name)), None):
        raise InputError(f"--{given}: this option cannot be used with {form}; --help lists the options of each form")


def places_of(outputs: str | None) -> list[Path]:
    """The folders of runs; of those that the user does not name, one may be absent."""
    places: list[Path] = [opened(place) for place in (outputs or "outputs,results").split(",")]
    missing = [place.resolve() for place in places if not place.is_dir()]
    if missing and (outputs or len(missing) == len(places)):
        raise InputError(
            f"outputs: there is no folder {missing[0]}; start the program in {CONF.parent}, or give outputs="
        )
    return places


def refuse_seeds(wanted: Sequence[int], there: set[int], places: Sequence[Path]) -> None:
    """Raises InputError if a requested seed has no run: a table without runs would not show that it was mistyped."""
    if absent := [seed for seed in wanted if seed not in there]:
        known = f"; seeds with a run: {', '.join(map(str, sorted(there)))}" if there else ""
        raise InputError(f"seed={absent[0]}: no finished run has this seed in {', '.join(map(str, places))}{known}")


def save(
    args: argparse.Namespace, title: str, tables: list[Table], lines: list[str], figures: Sequence[Figure]
) -> None:
    """Writes the tables in every requested format, and the figures. Markdown also shows the figures."""
    drawings = {
        args.figure.with_stem(f"{args.figure.stem}-{number}") if number > 1 else args.figure: figure
        for number, figure in enumerate(figures if args.figure else (), 1)
    }
    if args.markdown:
        titles = {path: figure.title for path, figure in drawings.items()}
        write_section(args.markdown, to_markdown(tables, lines), args.section, titles)
        print(f"Markdown: {args.markdown}")
    if args.html:
        write_page(args.html, tables_page(title, tables, lines, args.html, figures))
        print(f"Page: {args.html}")
    for path, figure in drawings.items():
        write_page(path, standalone(figure))
        print(f"Figure: {path}")


if __name__ == "__main__":
    # Nearly all objects stay in use, so the default frequency of garbage collection takes a tenth of the time.
    gc.set_threshold(100_000)
    sys.exit(until_stopped(main))
