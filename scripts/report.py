"""Compares finished runs with each other or with a paper's table, on the terminal, in Markdown, LaTeX and HTML.

python scripts/report.py outputs/pivotrl outputs/sft outputs/local
python scripts/report.py sweep=pivotrl_tab4
python scripts/report.py summary --json

``--help`` lists all arguments and more examples (``turnwise.reports.arguments``).
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import track

from turnwise.config.overrides import is_sweep
from turnwise.console import Terminal, sized, until_stopped
from turnwise.errors import InputError
from turnwise.experiments.claims import SCALES
from turnwise.experiments.command_line import Asked, ask
from turnwise.experiments.row_hashes import RowHashes
from turnwise.experiments.sweep_file import Sweep, read_sweep, sweep_names
from turnwise.programs import program
from turnwise.reports.against_setting import differences, swept
from turnwise.reports.arguments import meant, parser, read_words, refuse_strangers
from turnwise.reports.comparison_page import comparison_figures, comparison_page
from turnwise.reports.entries import Entry, belongs, counted, entry_of_runs, read_entry, run_names
from turnwise.reports.entry_figures import entry_figures, run_folders
from turnwise.reports.entry_json import as_json
from turnwise.reports.entry_tables import entry_tables, summary_table
from turnwise.reports.find_runs import FinishedRuns, collect, folders_of
from turnwise.reports.gates.report import Settings, gate_report
from turnwise.reports.html_pages import write_page
from turnwise.reports.html_tables import tables_page
from turnwise.reports.latex import to_latex
from turnwise.reports.markdown import write_section
from turnwise.reports.run_metrics import RunMetrics
from turnwise.reports.run_report import write_pages
from turnwise.reports.svg import Figure, standalone
from turnwise.reports.tables import Table, footer, provenance, run_table, to_markdown, to_rich
from turnwise.reports.watch_runs import watch

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


def compare(args: argparse.Namespace, arguments: list[str]) -> None:
    """Compares the runs of some folders side by side."""
    refuse_strangers(args, ("brief", "json"), "folders")
    console = sized(160)
    for folder in folders_of(args.words) if args.rebuild else ():
        console.print(f"Report: {write_pages(folder)}")
    collection = collect(args.words)
    papers = {path: read_sweep(path) for path in args.paper}
    tables = build_tables(collection, papers)
    tables += [table for path in papers for table in beside_paper(collection, path, papers[path], args.words)]
    tables += differences(collection, args.against) if args.against else []
    lines = footer(collection, command_line(arguments), args.machine)
    show(tables, console)
    console.print(*lines, sep="\n")
    drawn = swept(collection, args.against) if args.against else {}
    page = comparison_page(collection, tables, lines, list(drawn.values()), args.html) if args.html else ""
    pictures = drawings(args.figure, drawn, collection) if args.figure else {}
    save(args, tables, lines, page, pictures, console)
    for path, figure in pictures.items():
        write_page(path, standalone(figure))
        console.print(f"Figure: {path}")


def directions(args: argparse.Namespace, arguments: list[str]) -> None:
    """Reports on one sweep, or on all sweeps. For all sweeps, the terminal shows one summary table; a file also gets
    the tables of every entry.
    """
    words = read_words(args.words, CONF.parent)
    whole = words.whole
    refuse_strangers(args, ("paper", "against", "machine", "rebuild", "watch"), "sweep=NAME and summary")
    refuse_strangers(args, ("figure",) if whole else ("brief",), "summary" if whole else "sweep=NAME")
    console = sized(160)
    names = [f"sweep={name}" for name in names_of(words.paper)] if whole else [""]
    asked = [ask([*words.rest, name] if name else words.rest, CONF) for name in names]
    cache = Path("outputs/cache") if Path("outputs").is_dir() else None
    hashes = RowHashes(CONF, cache and cache / "row_hashes.json")
    refuse_overrides(asked, hashes)
    gates = gate_report(words.data, Settings(), words.gated) if words.data else None
    err = Terminal(stderr=True)
    seen = track(asked, "Reading", console=err, transient=True, disable=not (whole and err.is_terminal))
    written = bool(args.markdown or args.latex or args.html) and not args.brief
    full = written or args.json or not whole  # whether more than the verdicts is shown or written
    entries = [read_entry(one, words.places, gates, hashes, both_modes=full) for one in seen]
    hashes.keep()
    refuse_seeds(entries, words.places)
    told = entries if written or not whole else []  # the entries whose own tables are shown or written
    every = [table for entry in told for table in entry_tables(entry)]
    tables = [summary_table(entries)] if whole else every
    show(tables, console)
    results = [result for entry in entries for result in entry.results]
    lines = provenance(results, command_line(arguments))
    kept = [*tables, *every] if whole else every
    title = "The papers' tables and figures" if whole else entries[0].asked.sweep.title
    pictures = [] if whole or not (args.figure or args.html) else entry_figures(entries[0])
    shown = {numbered(args.figure, n): picture for n, picture in enumerate(pictures if args.figure else ())}
    runs = {} if whole else run_folders(entries[0])
    page = tables_page(title, kept, lines, pictures, runs, args.html) if args.html else ""
    save(args, kept, lines, page, shown, console)
    if args.figure and not pictures:
        console.print(f"No figure: {args.figure} is not written, because these runs have no number to plot.")
    for path, picture in shown.items():
        write_page(path, standalone(picture))
        console.print(f"Figure: {path}")
    for found in (*map(as_json, entries), counted(entries)) if args.json else ():
        print(json.dumps(found))


def show(tables: Sequence[Table], console: Terminal) -> None:
    for table in tables:
        console.print(to_rich(table))
        console.print(*table.notes, "", sep="\n")


def names_of(paper: str | None) -> list[str]:
    """Returns the names of the sweeps of one paper, or of all papers.

    Raises:
        InputError: no sweep belongs to ``paper``.
    """
    names = sweep_names(CONF)
    found = [name for name in names if paper is None or name.partition("_")[0] == paper]
    if not found:
        there = ", ".join(sorted({name.partition("_")[0] for name in names}))
        raise InputError(f"paper={paper}: this paper is unknown; choose one of {there}")
    return found


def numbered(path: Path, number: int) -> Path:
    """Returns the file name of an entry's drawing. The first drawing (0) has the name ``path``, the second that name
    with -2.
    """
    return path.with_stem(f"{path.stem}-{number + 1}") if number else path


def refuse_overrides(asked: Sequence[Asked], hashes: RowHashes) -> None:
    """Checks that at least one of the sweeps accepts the overrides.

    Raises:
        InputError: no sweep accepts them.
    """
    refused: InputError | None = None
    for one in asked:
        try:
            hashes.takes(one)
            return
        except InputError as error:
            refused = refused or meant(one.extra, error)
    if refused is not None:
        raise refused


def refuse_seeds(entries: Sequence[Entry], places: Sequence[Path]) -> None:
    """Checks that there is a run for every requested seed, because a table without runs would not show that a seed was
    mistyped.

    Raises:
        InputError: there is no run with a requested seed.
    """
    there = {result.seed for entry in entries for result in entry.results}
    absent = [seed for seed in entries[0].asked.seeds or () if seed not in there]
    if absent:
        told = (
            f"only these requested seeds have a run: {', '.join(map(str, sorted(there)))}"
            if there
            else "no requested seed has a run"
        )
        where = ", ".join(map(str, places))
        raise InputError(f"seed={absent[0]}: there is no finished run with this seed in {where}; {told}")


def drawings(path: Path, drawn: dict[str, Figure], collection: FinishedRuns) -> dict[Path, Figure]:
    """Returns the drawings for ``--figure`` by file name, with a separate file for each environment if there are
    several.
    """
    if len(drawn) > 1:
        return {path.with_stem(f"{path.stem}-{name}"): figure for name, figure in drawn.items()}
    figures = list(drawn.values()) or comparison_figures(collection)
    return {path: figures[0]} if figures else {}


def command_line(arguments: list[str]) -> str:
    return shlex.join(["python", "scripts/report.py", *arguments])


def save(
    args: argparse.Namespace,
    tables: list[Table],
    lines: list[str],
    page: str,
    shown: dict[Path, Figure],
    console: Terminal,
) -> None:
    """Writes the tables in every requested format. Markdown also shows the pictures."""
    if args.markdown:
        titles = {path: figure.title for path, figure in shown.items()}
        write_section(args.markdown, to_markdown(tables, lines), args.section, titles)
        console.print(f"Markdown: {args.markdown}")
    if args.latex:
        write_section(args.latex, to_latex(tables, lines))
        console.print(f"LaTeX: {args.latex}")
    if args.html:
        write_page(args.html, page)
        console.print(f"Page: {args.html}")


def build_tables(collection: FinishedRuns, papers: Mapping[Path, Sweep]) -> list[Table]:
    """Returns a table of runs for each environment and scale. Runs of the sweeps have the label of their row, and come
    first, in the order of the rows.
    """
    named = [
        (name, sweep.labels[row])
        for path, sweep in papers.items()
        for row, name in run_names(sweep, path.absolute().parents[1]).items()
    ]
    tables = []
    for (env, scale), rows in collection.sections.items():
        labels = {row.name: label for name, label in named for row in rows if belongs(row.name, name)}
        order = [*labels, *(row.name for row in rows)]
        tables.append(run_table(env, scale, sorted(rows, key=lambda row: order.index(row.name)), labels))
    return tables


def beside_paper(collection: FinishedRuns, path: Path, sweep: Sweep, folders: Sequence[str]) -> list[Table]:
    """Returns the tables of a sweep file with the runs of some folders, for each scale of the runs. If none of the runs
    belongs to the sweep, there is a note instead.
    """
    conf = path.absolute().parents[1]
    ours = list(run_names(sweep, conf).values())
    scales: dict[str, dict[str, dict[int, RunMetrics]]] = {}
    for (env, scale), rows in collection.sections.items():
        found = scales.setdefault(scale if scale in SCALES else "tiny", {})
        for row in rows:
            runs = {seed: RunMetrics(row.folders[seed], result) for seed, result in row.results.items()}
            if found.setdefault(row.name, runs) is not runs and any(belongs(row.name, name) for name in ours):
                where = f"env={env}, scale {scale}"
                collection.notes.append(
                    f"{path}: the runs {row.name} of {where} are left out, because others have this name."
                )
    tables = []
    for scale, found in scales.items():
        asked = Asked(sweep.of_scale(scale), conf, scale)  # type: ignore[arg-type]
        places = [place for folder in map(Path, folders) for place in (folder, *folder.parents)]
        entry = entry_of_runs(asked, found, places)
        tables += entry_tables(entry) if any(entry.rows.values()) else []
    if not tables:
        names = ", ".join(ours)
        collection.notes.append(f"{path}: none of the compared runs is a row of this sweep; its rows are {names}.")
    return tables


if __name__ == "__main__":
    # Garbage collection is rarer than by default, because nearly all objects stay in use. By default, it takes a tenth
    # of the program's time.
    gc.set_threshold(100_000)
    sys.exit(until_stopped(main))
