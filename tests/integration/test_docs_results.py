"""The sections of docs/results are those of the kept runs, tables and notes: nobody forgot to write them again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from scripts import report

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
SECTION = re.compile(r"<!-- table:([\w-]+) -->(.*?)<!-- /table:\1 -->", re.DOTALL)
WRITTEN = re.compile(
    r"^Written by `python scripts/report\.py ((?:summary|sweep=|results/).*?) --markdown (\S+) .*`\.$", re.MULTILINE
)
APART = ("Written by ", "![", "Rows whose runs are in results/", "For rows that you have not run, ")


def sections() -> list[tuple[Path, str, list[str]]]:
    """Page, section and the arguments of scripts/report.py that wrote it, of those that read kept runs."""
    found = []
    for page in (ROOT / "docs" / "results.md", *sorted((ROOT / "docs" / "results").rglob("*.md"))):
        for name, text in SECTION.findall(page.read_text(encoding="utf-8")):
            if written := WRITTEN.search(text):
                found.append((page, name, shlex.split(written[1])))
    return found


def said(text: str, name: str) -> list[str]:
    """The lines of a section, but for the command that wrote it, its pictures, and where its runs lie."""
    section = next(body for found, body in SECTION.findall(text) if found == name)
    return [line for line in section.splitlines() if line and not line.startswith(APART)]


@pytest.mark.slow  # a bootstrap for every claim
@pytest.mark.skipif(not RESULTS.exists(), reason="the kept runs are not in this copy")
@pytest.mark.parametrize(
    ("page", "name", "arguments"), sections(), ids=lambda part: part if isinstance(part, str) else ""
)
def test_a_section_has_the_numbers_of_the_kept_runs(
    page: Path, name: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / page.name
    copy.write_text(f"<!-- table:{name} -->\n<!-- /table:{name} -->\n")
    monkeypatch.chdir(ROOT)
    places = [] if arguments[0].startswith("results/") else ["outputs=results"]
    assert report.main([*arguments, *places, "--markdown", str(copy), "--section", name]) == 0
    written = said(copy.read_text(encoding="utf-8"), name)
    assert sum(line.startswith("|") for line in written) > 2
    assert written == said(page.read_text(encoding="utf-8"), name), f"write it again: {' '.join(arguments)}"
