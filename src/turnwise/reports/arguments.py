"""The command line of ``scripts/report.py``: folders of runs, or the words of a sweep."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from turnwise.errors import InputError

EXAMPLES = """\
Compare finished runs, or hold them against a paper: tables on the terminal, in Markdown, LaTeX and HTML.

  report.py FOLDER ...                    runs side by side
  report.py sweep=NAME [KEY=VALUE ...]    a table or figure of a paper (conf/sweep/NAME.yaml), and its claims
  report.py summary [KEY=VALUE ...]       all of them, a line each

python scripts/report.py outputs/pivotrl outputs/sft outputs/local
python scripts/report.py outputs/pivotrl/tab1 --paper conf/sweep/pivotrl_tab1.yaml --markdown docs/results.md
python scripts/report.py outputs/pivotrl/seed0 --watch     a run that is under way, until it ends
python scripts/report.py outputs/pivotrl/seed0 --rebuild
python scripts/report.py outputs/awpo/noise --against judge.noise --figure noise.svg
python scripts/report.py sweep=pivotrl_tab4            what `python train.py sweep=pivotrl_tab4` left, and the paper's claims
python scripts/report.py sweep=pivotrl_tab4 --latex table4.tex --markdown table4.md --html table4.html --figure table4.svg
python scripts/report.py sweep=pivotrl_tab4 rows=full,sft seed=0 outputs=results
python scripts/report.py sweep=selective_tab7 data=outputs/gate/never gated=outputs/gate/divergence
python scripts/report.py summary --json                a line of JSON an entry; the last one counts the verdicts by paper

words of the two latter forms:
  scale=tiny|paper   the runs of that scale (default tiny)
  rows=A,B           those rows alone; sweep= only
  seed=0,1           those seeds alone (default: the sweep's)
  outputs=A,B        folders of runs; a row is read from the first that has one of it (default outputs,results)
  data=PATH          recorded groups for the entries that scripts/gate_report.py computes (default: the sweep's own)
  gated=PATH         what the same runs recorded with a gate
  KEY=VALUE          overrides that the runs were started with, as for train.py
"""
_WORDS = ("sweep", "scale", "rows", "seed", "outputs", "data", "gated")
_DEFAULT = "outputs,results"


@dataclass(frozen=True, slots=True)
class Words:
    """What is asked of sweeps: ``rest`` is as of ``train.py`` (``turnwise.experiments.jobs.ask``)."""

    whole: bool  # a summary
    places: tuple[Path, ...]
    data: Path | None
    gated: Path | None
    rest: tuple[str, ...]


def parser() -> argparse.ArgumentParser:
    """Of all forms; what one of them alone takes is refused by :func:`refuse_strangers`."""
    parser = argparse.ArgumentParser(
        description=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("words", nargs="+", metavar="FOLDER | KEY=VALUE", help="as above")
    add = parser.add_argument_group("files to write").add_argument
    add("--markdown", type=Path, metavar="FILE", help="write the tables to FILE as Markdown")
    section = "replace only what stands between <!-- table:NAME --> and <!-- /table:NAME --> in the Markdown FILE"
    add("--section", metavar="NAME", help=section)
    add("--latex", type=Path, metavar="FILE", help="write the tables to FILE as LaTeX (booktabs)")
    add("--html", type=Path, metavar="FILE", help="write one self-contained page to FILE")
    figure = (
        "write the drawing to FILE as SVG, which --markdown then shows. Of folders it is the held-out change; with --against it "
        "is FILE-<world>-<scale> for several worlds; further ones of a sweep are FILE-2, ..."
    )
    add("--figure", type=Path, metavar="FILE", help=figure)
    add = parser.add_argument_group("folders").add_argument
    paper = "a file of conf/sweep/ whose table gives the paper's numbers; may be repeated"
    add("--paper", action="append", default=[], type=Path, metavar="SWEEP", help=paper)
    against = "draw success against this number of the configuration first, such as judge.noise"
    add("--against", metavar="KEY", help=against)
    add("--watch", action="store_true", help="follow runs that are under way until they end")
    add("--machine", metavar="TEXT", help="what the runs ran on, where their results do not say")
    add(
        "--rebuild",
        action="store_true",
        help="also draw each run's own report.html again, that of an unfinished one too",
    )
    add = parser.add_argument_group("sweep=NAME and summary").add_argument
    add("--brief", action="store_true", help="summary: no table of single entries in the files")
    add("--json", action="store_true", help="a line of JSON an entry, and as the last line the verdicts by paper")
    return parser


def refuse_strangers(args: argparse.Namespace, names: Sequence[str], form: str) -> None:
    """Refuse options that ``form`` does not read.

    Raises:
        InputError: one of ``names`` was given.
    """
    if given := next((name for name in names if getattr(args, name)), None):
        raise InputError(f"--{given}: is not for {form}; --help says what is")


def read_words(words: Sequence[str], home: Path) -> Words:
    """The words of a sweep or a summary.

    Args:
        home: of the checkout, to be told to who calls from elsewhere.

    Raises:
        InputError: a folder of runs is not there.
    """
    options, rest = {"outputs": "", "data": "", "gated": ""}, []
    for word in words:
        key, _, value = word.partition("=")
        if key in options:
            options[key] = value
        elif word != "summary":
            rest.append(word)
    places = tuple(Path(place) for place in (options["outputs"] or _DEFAULT).split(","))
    missing = [place.resolve() for place in places if not place.is_dir()]
    if options["outputs"] and missing:
        raise InputError(
            f"outputs={options['outputs']}: {missing[0]} is no folder; give folders that hold runs by name"
        )
    if len(missing) == len(places) and not options["data"]:
        looked = " nor ".join(map(str, missing))
        raise InputError(f"no runs: neither {looked} is there; start it in {home}, or give outputs=FOLDER")
    data, gated = (Path(options[key]) if options[key] else None for key in ("data", "gated"))
    return Words("summary" in words, places, data, gated, tuple(rest))


def meant(rest: Sequence[str], error: InputError) -> InputError:
    """The refusal of an override; where the report's own word is near, that one is told."""
    for word in rest:
        key = word.partition("=")[0]
        near = get_close_matches(key, _WORDS, n=1, cutoff=0.75)
        if near and f"there is no key '{key}'" in str(error):
            return InputError(f"{word}: there is no key '{key}'; did you mean '{near[0]}'?")
    return error
