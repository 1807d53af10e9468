"""Compares finished runs with each other or with a paper: tables on the terminal, in Markdown and HTML.

report.py FOLDER ...                    runs side by side
report.py sweep=NAME [KEY=VALUE ...]    a table or figure of a paper (conf/sweep/), and its claims
report.py summary [KEY=VALUE ...]       all tables and figures, one line each; with paper=NAME only those of one paper

python scripts/report.py outputs/pivotrl outputs/sft outputs/local
python scripts/report.py outputs/pivotrl/seed0 --watch     prints the progress of a running run until it ends
python scripts/report.py outputs/pivotrl/seed0 --rebuild
python scripts/report.py sweep=pivotrl_tab4            the runs of `python train.py sweep=pivotrl_tab4`, and the paper's claims
python scripts/report.py sweep=pivotrl_tab4 --markdown table4.md --html table4.html --figure table4.svg
python scripts/report.py sweep=pivotrl_tab4 rows=full,sft seed=0 outputs=results
python scripts/report.py sweep=selective_tab7 data=outputs/gate/never gated=outputs/gate/divergence
python scripts/report.py summary --json                one line of JSON for each entry, then the verdicts by paper

keys of the last two forms:
  scale=tiny|paper   only runs of this scale (default tiny)
  rows=A,B           only these rows; only with sweep=
  seed=0,1           only these seeds (default: the sweep's)
  paper=NAME         only the entries of one paper: pivotrl, awpo, trace, selective, turnwise (ours); only with summary
  outputs=A,B        folders of runs; a row is read from the first folder that has a run of it (default outputs,results)
  data=PATH          recorded groups for the entries that scripts/gate_report.py computes (default: the groups that the
                     runs of the sweep recorded)
  gated=PATH         recorded groups of runs that differ from the runs of data=PATH only in having a gate
  KEY=VALUE          an override that the runs were started with, as for train.py
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.progress import track

from turnwise.config.overrides import is_sweep
from turnwise.console import Terminal, sized, until_stopped
from turnwise.errors import InputError, refuse_twice
from turnwise.programs import program
from turnwise.runs.archive import RunPath
from turnwise_study.comparison import comparison_page, footer, provenance, run_table
from turnwise_study.entries import Entry, as_json, counted, read_entry
from turnwise_study.entry_tables import entry_figures, entry_tables, run_folders, summary_table
from turnwise_study.figures import Figure, standalone
from turnwise_study.gates.report import Settings, gate_report
from turnwise_study.run_page import watch, write_pages
from turnwise_study.runs import collect, folders_of
from turnwise_study.sweeps.jobs import Asked, ask
from turnwise_study.sweeps.row_hashes import RowHashes
from turnwise_study.sweeps.sweep_file import sweep_names
from turnwise_study.tables import Table, tables_page, to_markdown, to_rich, write_page, write_section

CONF = Path(__file__).resolve().parents[1] / "conf"


@program()
def main(arguments: list[str]) -> int:
    """Runs the program. Returns its exit status: 0 done; 1 a watched run ended without a result; 2 an argument is
    unusable.
    """
    args = parser().parse_intermixed_args(arguments)
    if args.figure and args.figure.suffix.lower() != ".svg":
        raise InputError(f"--figure {args.figure}: figures are written as SVG; give a file name that ends in .svg")
    if args.watch:
        return 0 if watch(folders_of(args.words), Terminal()) else 1
    if "summary" in args.words or is_sweep(args.words):
        directions(args, arguments)
    else:
        compare(args, arguments)
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
    add("--watch", action="store_true", help="folders: print the progress of running runs until they end")
    add("--rebuild", action="store_true", help="folders: also write the report.html of every run again")
    add("--brief", action="store_true", help="summary: write no tables of single entries to the files")
    add("--json", action="store_true", help="sweep and summary: print a line of JSON for each entry, and the verdicts")
    return parser


def refuse_strangers(args: argparse.Namespace, names: Sequence[str], form: str) -> None:
    """Raises InputError if an option in ``names`` was given, which this form of the command does not take."""
    if given := next((name for name in names if getattr(args, name)), None):
        raise InputError(f"--{given}: this option cannot be used with {form}; --help lists the options of each form")


def compare(args: argparse.Namespace, arguments: list[str]) -> None:
    """Compares the runs of some folders side by side."""
    refuse_strangers(args, ("brief", "json", "figure"), "folders")
    console = sized(160)
    for folder in folders_of(args.words) if args.rebuild else ():
        console.print(f"Report: {write_pages(folder)}")
    collection = collect(args.words)
    tables = [run_table(env, scale, rows) for (env, scale), rows in collection.sections.items()]
    lines = footer(collection, command_line(arguments))
    show(tables, console)
    console.print(*lines, sep="\n")
    page = comparison_page(collection, tables, lines, args.html) if args.html else ""
    save(args, tables, lines, page, [], console)


def directions(args: argparse.Namespace, arguments: list[str]) -> None:
    """Reports on one sweep, or on all sweeps. For all sweeps, the terminal shows one summary table; a file also gets
    the tables of every entry.
    """
    words = read_words(args.words)
    whole = words.whole
    refuse_strangers(args, ("rebuild",), "sweep=NAME and summary")
    refuse_strangers(args, ("figure",) if whole else ("brief",), "summary" if whole else "sweep=NAME")
    console = sized(160)
    names = [f"sweep={name}" for name in names_of(words.paper)] if whole else [""]
    asked = [ask([*words.rest, name] if name else words.rest, CONF) for name in names]
    hashes = RowHashes(CONF)
    refuse_overrides(asked, hashes)
    gates = gate_report(words.data, Settings(), words.gated) if words.data else None
    err = Terminal(stderr=True)
    seen = track(asked, "Reading", console=err, transient=True, disable=not (whole and err.is_terminal))
    written = bool(args.markdown or args.html) and not args.brief
    entries = [read_entry(one, words.places, gates, hashes) for one in seen]
    refuse_seeds(entries, words.places)
    every = [table for entry in (entries if written or not whole else []) for table in entry_tables(entry)]
    tables = [summary_table(entries)] if whole else every
    show(tables, console)
    lines = provenance([result for entry in entries for result in entry.results], command_line(arguments))
    tables = [*tables, *every] if whole else every
    title = "The papers' tables and figures" if whole else entries[0].asked.sweep.title
    figures = [] if whole or not (args.figure or args.html) else entry_figures(entries[0])
    runs = {} if whole else run_folders(entries[0])
    page = tables_page(title, tables, lines, figures, runs, args.html) if args.html else ""
    save(args, tables, lines, page, figures if args.figure else [], console)
    for found in (*map(as_json, entries), counted(entries)) if args.json else ():
        print(json.dumps(found))


class Words(NamedTuple):
    """The parsed keys of a report on a sweep, or of a summary of all sweeps."""

    whole: bool  # whether a summary of all sweeps is requested
    places: tuple[Path, ...]
    data: Path | None
    gated: Path | None
    paper: str | None
    rest: tuple[str, ...]  # arguments that train.py understands too


def read_words(words: Sequence[str]) -> Words:
    """Parses the keys.

    Raises:
        InputError: a folder of runs does not exist, a key is given twice, or ``paper=`` is given for a sweep.
    """
    refuse_twice(words)
    own = {key: value for key, _, value in (word.partition("=") for word in words)}
    rest = [word for word in words if word.partition("=")[0] not in ("outputs", "data", "gated", "paper", "summary")]
    places = tuple(RunPath(place) for place in (own.get("outputs") or "outputs,results").split(","))
    missing = [place.resolve() for place in places if not place.is_dir()]
    if missing and (own.get("outputs") or (len(missing) == len(places) and not own.get("data"))):
        raise InputError(
            f"outputs: there is no folder {missing[0]}; start the program in {CONF.parent}, or give outputs="
        )
    if own.get("paper") and "summary" not in words:
        raise InputError(f"paper={own['paper']}: this key can only be used with summary")
    data, gated = (RunPath(own[key]) if own.get(key) else None for key in ("data", "gated"))
    return Words("summary" in words, places, data, gated, own.get("paper") or None, tuple(rest))


def show(tables: Sequence[Table], console: Terminal) -> None:
    for table in tables:
        console.print(to_rich(table))
        console.print(*table.notes, "", sep="\n")


def names_of(paper: str | None) -> list[str]:
    """Returns the names of the sweeps of one paper, or of all papers. Raises InputError if the paper is unknown."""
    names = sweep_names(CONF)
    chosen = [name for name in names if paper is None or name.partition("_")[0] == paper]
    if not chosen:
        there = ", ".join(sorted({name.partition("_")[0] for name in names}))
        raise InputError(f"paper={paper}: this paper is unknown; choose one of {there}")
    return chosen


def refuse_overrides(asked: Sequence[Asked], hashes: RowHashes) -> None:
    """Raises InputError if none of the sweeps accepts the overrides."""
    refused: InputError | None = None
    for one in asked:
        try:
            hashes.takes(one)
            return
        except InputError as error:
            refused = refused or error
    if refused is not None:
        raise refused


def refuse_seeds(entries: Sequence[Entry], places: Sequence[Path]) -> None:
    """Raises InputError if a requested seed has no run: a table without runs would not show that it was mistyped."""
    there = {result.seed for entry in entries for result in entry.results}
    absent = [seed for seed in entries[0].asked.seeds or () if seed not in there]
    if absent:
        known = f"; seeds with a run: {', '.join(map(str, sorted(there)))}" if there else ""
        raise InputError(f"seed={absent[0]}: no finished run has this seed in {', '.join(map(str, places))}{known}")


def command_line(arguments: list[str]) -> str:
    return shlex.join(["python", "scripts/report.py", *arguments])


def save(
    args: argparse.Namespace, tables: list[Table], lines: list[str], page: str, figures: list[Figure], console: Terminal
) -> None:
    """Writes the tables in every requested format, and the figures. Markdown also shows the figures."""
    drawings = {
        args.figure.with_stem(f"{args.figure.stem}-{number}") if number > 1 else args.figure: figure
        for number, figure in enumerate(figures, 1)
    }
    if args.markdown:
        titles = {path: figure.title for path, figure in drawings.items()}
        write_section(args.markdown, to_markdown(tables, lines), args.section, titles)
        console.print(f"Markdown: {args.markdown}")
    if args.html:
        write_page(args.html, page)
        console.print(f"Page: {args.html}")
    for path, figure in drawings.items():
        write_page(path, standalone(figure))
        console.print(f"Figure: {path}")


if __name__ == "__main__":
    # Nearly all objects stay in use, so the default frequency of garbage collection takes a tenth of the time.
    gc.set_threshold(100_000)
    sys.exit(until_stopped(main))
