"""Converts matplotlib figures to inline SVG that takes its colours and font from the surrounding HTML page.

Figures are drawn in placeholder colours, which become CSS variables, so that a drawing works on a light and on a dark
page. The ids of SVG elements have a prefix, because one page holds several drawings.

Each data point (mark) is covered by an invisible circle with a ``<title>``, which a browser shows at the mouse pointer.
The script ``templates/figures.js`` shows the title on touch and by keyboard too, and can hide a series
(:meth:`Drawing.belongs`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape, unescape
from math import isfinite
from textwrap import wrap
from typing import Any

import numpy as np
from cycler import cycler

INK, MUTED, GRID = "#010101", "#020202", "#030303"
SERIES = ("#040404", "#050505", "#060606", "#070707", "#0b0b0b", "#0c0c0c")
UP, DOWN, SURFACE = "#080808", "#090909", "#0a0a0a"
VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(SERIES, 1)},
    UP: "var(--up)",
    DOWN: "var(--down)",
    SURFACE: "var(--surface)",
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text is kept as text, so that it scales, can be searched and uses the page's font
    "text.parse_math": False,  # names may contain dollar signs
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "text.color": INK,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.labelcolor": MUTED,
    "lines.linewidth": 1.9,
    "lines.markersize": 4.5,
    "lines.solid_capstyle": "round",
    "axes.prop_cycle": cycler(color=SERIES),
    "figure.constrained_layout.use": True,
}


NARROW = 3.6  # width of a phone in inches
MARKS = 200  # largest number of points of one line that get a title
REACH = 7  # radius of the invisible circle over a data point, in page units


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing for an HTML page: inline SVG, and a text that describes it."""

    title: str
    svg: str
    alt: str
    wide: bool = False
    narrow: str = ""  # a version of the drawing for phones; empty if ``svg`` is narrow enough
    key: str = ""  # explanation of the dots and lines; it is shown only if the drawing is saved as a separate image


class Drawing:
    """A matplotlib figure that also records titles for its data points (marks), and the series of its parts.

    matplotlib is imported by the functions that draw, because importing it takes longer than writing most reports.
    """

    def __init__(self, figure: Any) -> None:
        self.figure = figure
        self.told: list[tuple[Any, float, float, str, str]] = []
        self.colours: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.figure, name)

    def tell(self, axes: Any, x: float, y: float, text: str, series: str = "") -> None:
        """Records the title of the data point (x, y), which the browser shows when the point is selected."""
        if isfinite(x) and isfinite(y):
            self.told.append((axes, float(x), float(y), text, series))

    def tell_line(
        self,
        axes: Any,
        x: Sequence[float] | np.ndarray,
        y: Sequence[float] | np.ndarray,
        said: Callable[[float, float], str],
        series: str = "",
    ) -> None:
        """Records titles for the points of a line, or for about ``MARKS`` evenly spaced points of a longer line."""
        step = max(1, -(-(len(x) - 1) // (MARKS - 1)))
        for i in sorted({*range(0, len(x), step), len(x) - 1}):
            self.tell(axes, x[i], y[i], said(x[i], y[i]), series)

    def belongs(self, series: str, colour: str, *artists: Any) -> None:
        """Assigns artists to a series. The page hides and shows all parts of a series together."""
        self.colours.setdefault(series, colour)
        for artist in artists:
            artist.set_gid(f"series:{series}")


@contextmanager
def canvas(width: float = 5.2, height: float = 2.9) -> Iterator[Drawing]:
    """Yields a figure in the report's style. Sizes are in inches; one inch is 72 page units."""
    from matplotlib import figure, rc_context

    with rc_context(STYLE):
        yield Drawing(figure.Figure(figsize=(width, height)))


def label(text: str, limit: int = 28) -> str:
    """Returns a name, broken into lines of at most ``limit`` characters, for use on an axis."""
    return "\n".join(wrap(text, limit)) or text


def whole_iterations(axes: object) -> None:
    """Sets the ticks of the x axis to whole numbers, and its label to "iteration"."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))  # type: ignore[attr-defined]
    axes.set_xlabel("iteration")  # type: ignore[attr-defined]


def to_svg(figure: Drawing, key: str, alt: str) -> str:
    """Returns the drawing as an accessible ``<svg>`` element whose ids all start with ``key``."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure.figure)
    buffer = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": key}):
        blank = {"Date": None, "Creator": None, "Format": None, "Type": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=blank)
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    width, height = figure.get_size_inches() * 72
    body = body[: body.rindex("</svg>")].strip() + _marks(figure, height)
    body = re.sub(r'\bid="series:([^"]*)"', lambda found: _series(found[1], figure.colours[unescape(found[1])]), body)
    body = re.sub(r'\bid="', f'id="{key}-', body)
    body = re.sub(r'(xlink:)?href="#', f'href="#{key}-', body)
    body = body.replace("url(#", f"url(#{key}-")
    body = re.sub(r"#0[1-9a-f]0[1-9a-f]0[1-9a-f]\b", lambda found: VARIABLES.get(found[0], found[0]), body)
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(alt)}">'
    return f"{head}{body}</svg>"


def _series(name: str, colour: str) -> str:
    return f'data-series="{name}" data-colour="{colour}"'


def _marks(figure: Drawing, height: float) -> str:
    """Returns the invisible circles over the data points. The figure must be drawn first, to compute the layout."""
    circles = []
    for axes, x, y, text, series in figure.told:
        across, up = axes.transData.transform((x, y)) * 72 / figure.dpi
        of = f' data-series="{escape(series)}"' if series else ""
        place = f'cx="{across:.1f}" cy="{height - up:.1f}" r="{REACH}"'
        circles.append(f'<circle class="mark" {place}{of}><title>{escape(text)}</title></circle>')
    return f'<g fill="none" pointer-events="all">{"".join(circles)}</g>' if circles else ""


ALONE = (
    "svg{--ink:#1b1f24;--muted:#57606a;--grid:#d5d9de;--surface:#ffffff;--series-1:#1a5fb4;--series-2:#b4530a;"
    "--series-3:#0b7a6b;--series-4:#7a45b0;--series-5:#a3195b;--series-6:#5f6b00;--up:#146c3a;--down:#b02a2a;background:#ffffff;font-family:sans-serif}"
)


def standalone(figure: Figure) -> str:
    """Returns a separate SVG file in light colours, with the drawing's title above it and its ``key`` below it."""
    head, rest = figure.svg.split(">", 1)
    width, height = (int(size) for size in re.findall(r'viewBox="0 0 (\d+) (\d+)"', head)[0])
    above, below = wrap(figure.title, width // 8), wrap(figure.key, width // 6)
    top, bottom = 18 * len(above) + 8, 15 * len(below) + (8 if below else 0)
    head = head.replace(f'viewBox="0 0 {width} {height}"', f'viewBox="0 {-top} {width} {height + top + bottom}"')
    text = [_line(line, 18 * n + 16 - top, "var(--ink)", 13.5, 600) for n, line in enumerate(above)]
    text += [_line(line, height + 15 * n + 14, "var(--muted)", 10.5, 400) for n, line in enumerate(below)]
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f"{head} {spaces}><style>{ALONE}</style>{''.join(text)}{rest}\n"


def _line(text: str, y: int, colour: str, size: float, weight: int) -> str:
    return f'<text x="6" y="{y}" fill="{colour}" font-size="{size}" font-weight="{weight}">{escape(text)}</text>'
