"""Parses the command line of ``scripts/report.py``: folders of runs, the name of a sweep, or ``summary``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from turnwise.errors import InputError, refuse_twice
from turnwise.runs.archive import RunPath

EXAMPLES = """\
Compare finished runs with each other or with a paper: tables on the terminal, in Markdown, LaTeX and HTML.

  report.py FOLDER ...                    runs side by side
  report.py sweep=NAME [KEY=VALUE ...]    a table or figure of a paper (conf/sweep/NAME.yaml), and its claims
  report.py summary [KEY=VALUE ...]       all tables and figures, one line each; with paper=NAME only those of one paper

python scripts/report.py outputs/pivotrl outputs/sft outputs/local
python scripts/report.py outputs/pivotrl/tab1 --paper conf/sweep/pivotrl_tab1.yaml --markdown docs/results.md
python scripts/report.py outputs/pivotrl/seed0 --watch     follow a running run until it ends
python scripts/report.py outputs/pivotrl/seed0 --rebuild
python scripts/report.py outputs/awpo/noise --against judge.noise --figure noise.svg
python scripts/report.py sweep=pivotrl_tab4            the runs of `python train.py sweep=pivotrl_tab4`, and the paper's claims
python scripts/report.py sweep=pivotrl_tab4 --latex table4.tex --markdown table4.md --html table4.html --figure table4.svg
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
_WORDS = ("sweep", "scale", "rows", "seed", "paper", "outputs", "data", "gated")
_DEFAULT = "outputs,results"


@dataclass(frozen=True, slots=True)
class Words:
    """The parsed arguments of a report on a sweep, or of a summary of all sweeps."""

    whole: bool  # whether a summary of all sweeps is requested
    places: tuple[Path, ...]
    data: Path | None
    gated: Path | None
    paper: str | None
    rest: tuple[str, ...]  # arguments that train.py understands too (``turnwise.experiments.command_line.ask``)


def parser() -> argparse.ArgumentParser:
    """Returns the parser, which accepts the options of all three forms: folders, a sweep, and a summary."""
    parser = argparse.ArgumentParser(
        description=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="FOLDER | KEY=VALUE",
        help="folders of runs, or a sweep or summary, as described above",
    )
    add = parser.add_argument_group("files to write").add_argument
    add("--markdown", type=Path, metavar="FILE", help="write the tables to FILE as Markdown")
    section = "replace only the text between <!-- table:NAME --> and <!-- /table:NAME --> in the Markdown FILE"
    add("--section", metavar="NAME", help=section)
    add("--latex", type=Path, metavar="FILE", help="write the tables to FILE as LaTeX (booktabs)")
    add("--html", type=Path, metavar="FILE", help="write one self-contained page to FILE")
    figure = (
        "write the figure to FILE as SVG; the file of --markdown then shows it. For folders the figure shows the "
        "held-out change. With --against and several environments the files are FILE-<environment>-<scale>. Further "
        "figures of a sweep are written to FILE-2, ..."
    )
    add("--figure", type=Path, metavar="FILE", help=figure)
    add = parser.add_argument_group("folders").add_argument
    paper = "a file of conf/sweep/ whose numbers and claims are shown beside the runs; may be repeated"
    add("--paper", action="append", default=[], type=Path, metavar="SWEEP", help=paper)
    against = "plot success against this numeric setting of the runs, such as judge.noise; the plot is the first figure"
    add("--against", metavar="KEY", help=against)
    add("--watch", action="store_true", help="show the progress of running runs until they end")
    add("--machine", metavar="TEXT", help="the machine of the runs, if their results do not name it")
    add(
        "--rebuild",
        action="store_true",
        help="also write the report.html of every run again, even of unfinished runs",
    )
    add = parser.add_argument_group("sweep=NAME and summary").add_argument
    add("--brief", action="store_true", help="only with summary: write no tables of single entries to the files")
    add(
        "--json",
        action="store_true",
        help="print a line of JSON for each entry, then a line with the verdicts by paper",
    )
    return parser


def refuse_strangers(args: argparse.Namespace, names: Sequence[str], form: str) -> None:
    """Checks that the user gave no option that does not apply to this form of the command (``form``).

    Raises:
        InputError: an option in ``names`` was given.
    """
    if given := next((name for name in names if getattr(args, name)), None):
        raise InputError(f"--{given}: this option cannot be used with {form}; --help lists the options of each form")


def read_words(words: Sequence[str], home: Path) -> Words:
    """Parses the arguments of a sweep or a summary.

    Args:
        home: the folder of the repository, which the error message names if no folder of runs is found.

    Raises:
        InputError: a folder of runs does not exist, an argument is given twice, or ``paper=`` is given for a sweep.
    """
    refuse_twice(words)
    options, rest = {"outputs": "", "data": "", "gated": "", "paper": ""}, []
    for word in words:
        key, _, value = word.partition("=")
        if key in options:
            options[key] = value
        elif word != "summary":
            rest.append(word)
    places = tuple(RunPath(place) for place in (options["outputs"] or _DEFAULT).split(","))
    missing = [place.resolve() for place in places if not place.is_dir()]
    if options["outputs"] and missing:
        raise InputError(f"outputs={options['outputs']}: {missing[0]} is not a folder; give folders that contain runs")
    if len(missing) == len(places) and not options["data"]:
        looked = " nor ".join(map(str, missing))
        raise InputError(f"no runs: neither {looked} exists; start the program in {home}, or give outputs=FOLDER")
    data, gated = (RunPath(options[key]) if options[key] else None for key in ("data", "gated"))
    if options["paper"] and "summary" not in words:
        raise InputError(
            f"paper={options['paper']}: this key can only be used with summary, because a sweep belongs to one paper"
        )
    return Words("summary" in words, places, data, gated, options["paper"] or None, tuple(rest))


def meant(rest: Sequence[str], error: InputError) -> InputError:
    """Returns the error to show: ``error``, or a suggestion if a key resembles a key of the report (``_WORDS``)."""
    for word in rest:
        key = word.partition("=")[0]
        near = get_close_matches(key, _WORDS, n=1, cutoff=0.75)
        if near and f"there is no key '{key}'" in str(error):
            return InputError(f"{word}: there is no key '{key}'; did you mean '{near[0]}'?")
    return error
