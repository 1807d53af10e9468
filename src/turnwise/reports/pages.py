"""The pages of a run's folder: its report, and the browser of its recorded trees."""

from __future__ import annotations

from pathlib import Path

from turnwise.reports.browser import write_browser
from turnwise.reports.html import write_report


def write_pages(folder: Path | str) -> Path:
    """Write ``rollouts.html`` where there are trees, and ``report.html``, whose path is returned.

    Raises:
        FileNotFoundError: when ``folder`` is no folder.
        OSError: when a page cannot be written; the previous one stays.
    """
    write_browser(folder)  # first: the report links to it
    return write_report(folder)
