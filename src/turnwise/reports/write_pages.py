"""Writes the HTML pages of a run: its report, and a page for browsing its recorded rollout trees."""

from __future__ import annotations

from pathlib import Path

from turnwise.reports.html_pages import write_report
from turnwise.reports.rollout_browser import write_browser


def write_pages(folder: Path | str) -> Path:
    """Writes ``report.html`` and, if the run recorded rollout trees, ``rollouts.html``. Returns the path of the report.

    Raises:
        FileNotFoundError: ``folder`` is not a folder.
        OSError: a page cannot be written; the previous version of the page is kept.
    """
    write_browser(folder)  # written first, because the report links to it
    return write_report(folder)
