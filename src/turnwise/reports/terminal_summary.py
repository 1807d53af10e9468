"""Prints the summary of a finished run on the terminal."""

from __future__ import annotations

from pathlib import Path

from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from turnwise.console import Terminal
from turnwise.reports.sentences import (
    cost_sentence,
    gate_sentence,
    held_out_sentence,
    judge_sentence,
    ood_sentence,
    result_verdict,
    scale_sentence,
    verifier_sentence,
)
from turnwise.runs.result_file import Result
from turnwise.text import plain

STYLES = {"better": "bold green", "worse": "bold red", "unclear": "bold yellow", "unfinished": "bold yellow"}


def summary_lines(result: Result, report: Path | str | None = None) -> list[str]:
    """Returns the lines of a run's summary, with the change of success first."""
    lines = [
        result_verdict(result).sentence,
        held_out_sentence(result),
        ood_sentence(result),
        cost_sentence(result),
        verifier_sentence(result),
        judge_sentence(result),
        gate_sentence(result),
        *(f"Warning: {text}" for text in result.warnings),
        scale_sentence(result),
        f"Report: {report}" if report is not None else "",
    ]
    return [line for line in lines if line]


def print_summary(result: Result, report: Path | str | None = None, console: Terminal | None = None) -> None:
    """Prints the summary of a run. The colour of the headline says whether success is better, worse or unclear."""
    console = console or Terminal()
    first, *rest = summary_lines(result, report)
    console.print(Rule(f"{result.method} on {result.env}, seed {result.seed}", align="left"))
    console.print(Padding(Text(plain(first), style=STYLES[result_verdict(result).kind]), (0, 1)))
    for line in rest:
        console.print(Padding(Text(plain(line), overflow="fold"), (0, 1)))
