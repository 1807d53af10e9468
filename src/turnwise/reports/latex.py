"""Writes tables as LaTeX: ``table`` environments with booktabs rules, for inclusion in a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence

from turnwise.reports.tables import Table

WIDE = 6  # a table with this many columns or more is scaled to the line width
_PREAMBLE = "% \\usepackage{booktabs} and \\usepackage{graphicx} in the preamble."
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    '"': r"\textquotedbl{}",
}
_MINUS = re.compile(r"(?<![\w.)\]])-(?=\d)")  # matches a minus sign before a number, but not a hyphen


def to_latex(tables: Sequence[Table], lines: Sequence[str] = ()) -> str:
    """Returns the tables with their notes as LaTeX. Each of ``lines`` becomes a LaTeX comment at the end."""
    parts = [_PREAMBLE, *map(_table, tables)]
    return "\n\n".join(parts) + "\n" + "".join(f"% {line}\n" for line in lines)


def escape(text: str) -> str:
    r"""Escapes text for LaTeX. Minus signs are set in math mode, ``+-`` becomes $\pm$, and `code` becomes \texttt."""
    pieces = re.split(r"`([^`]*)`", text)
    told = [f"\\texttt{{{_plain(piece)}}}" if code % 2 else _signed(piece) for code, piece in enumerate(pieces)]
    return "".join(told)


def _signed(text: str) -> str:
    return r"$\pm$".join(_MINUS.sub("\0", _plain(part)) for part in text.split("+-")).replace("\0", "$-$")


def _plain(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)


def _table(table: Table) -> str:
    columns = "l" + "r" * (len(table.headers) - 1)
    rows = [" & ".join(map(escape, row)) + r" \\" for row in table.rows]
    grid = [
        f"\\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        " & ".join(map(escape, table.headers)) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if len(table.headers) >= WIDE:
        grid = [r"\resizebox{\linewidth}{!}{%", *grid, "}"]
    notes = [f"\\par\\smallskip {{\\footnotesize {escape(note)}\\par}}" for note in table.notes]
    caption = [f"\\caption{{{escape(table.title)}}}", f"\\label{{tab:{_label(table.title)}}}"]
    return "\n".join([r"\begin{table}", r"\centering", *caption, *grid, *notes, r"\end{table}"])


def _label(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
