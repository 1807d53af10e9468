"""Measured numbers in the prose of docs/results*.md are those of the tables: what the prose says, a generated section says.

Measured is every number with a decimal point, before "%" or "points", or between square brackets, but for code, links, and the
numbers of papers, equations, tables and the like. It must stand (sign, commas and trailing zeros aside; one with a decimal point
as one that has it) in a section that ``scripts/report.py`` wrote on the same page, or on a page that the same sentence links to.
Counts without a unit, numbers in words and what they are said of go unchecked.
What no table holds stands in a paragraph with ``<!-- measured: COMMAND -->``, the command that measures it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / "results.md", *sorted((ROOT / "docs" / "results").rglob("*.md"))]
GENERATED = re.compile(r"<!-- table:([\w-]+) -->.*?<!-- /table:\1 -->", re.DOTALL)
MEASURED = re.compile(r"<!-- measured: (.+?) -->", re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
NUMBER = r"\d[\d,]*(?:\.\d+)?"
ALONE = rf"(?<![\w.,:/])[-+]?({NUMBER})(?!\w|[.,:/]\d)"  # part of no name, version, time or date
SILENT = re.compile(
    r"`[^`]*`|<!--.*?-->|\]\([^)]*\)|arXiv:\S+|(?:App|Eq|Sec|Table|Figure|Fig)s?\.? [A-Z]?[.\d]*\d", re.DOTALL
)


def numbers(text: str) -> set[str]:
    """Every number of a text as it compares, 50.0 as 50 too: 50 % may stand there as 50.0, but not 50.0 % as 50."""
    found = {plain(number) for number in re.findall(ALONE, re.sub(r"`[^`]*`", " ", text))}
    return found | {number.removesuffix(".0") for number in found}


def plain(number: str) -> str:
    """Without commas and trailing zeros, but for one behind the point."""
    whole, point, rest = number.replace(",", "").partition(".")
    return f"{whole}.{rest.rstrip('0') or '0'}" if point else whole


def paragraphs(page: str) -> Iterator[str]:
    """Paragraphs and items of lists outside generated sections, code, and tables written by hand."""
    page = re.sub(r"^```.*?^```", "", GENERATED.sub("\n\n", page), flags=re.DOTALL | re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*] )|\n(?=#)", page):
        if block.strip() and not re.match(r"\n?(\||    )", block):
            yield " ".join(block.split())


def said(sentence: str) -> set[str]:
    """The measured numbers of a sentence."""
    text = SILENT.sub(" ", sentence)
    found = {number for number in re.findall(ALONE, text) if "." in number}
    found.update(
        *(re.findall(ALONE, listed) for listed in re.findall(rf"((?:{NUMBER},? (?:and |to |or )?)+)(?:%|points)", text))
    )
    found.update(*(re.findall(ALONE, inside) for inside in re.findall(r"\[([-+\d., ]+)\]", text)))
    return {plain(number) for number in found}


def untold(page: Path) -> list[tuple[str, set[str], str | None]]:
    """Sentences with numbers that no table has, these numbers, and the command that the paragraph gives."""
    text = page.read_text(encoding="utf-8")
    here = numbers("".join(found[0] for found in GENERATED.finditer(text)))
    found = []
    for paragraph in paragraphs(text):
        command = MEASURED.search(paragraph)
        for sentence in re.split(r"(?<=[.:;!?*]) +(?=[A-Z*`\[])", MEASURED.sub("", paragraph)):
            there = here.union(*(told(page.parent / link) for link in LINK.findall(sentence) if ":" not in link))
            if missing := said(sentence) - there:
                found.append((sentence, missing, command[1] if command else None))
    return found


def told(page: Path) -> set[str]:
    """The numbers that a page vouches for: those of its generated sections, or all, where it has no such sections."""
    text = page.read_text(encoding="utf-8") if page.suffix == ".md" else ""
    return numbers("".join(found[0] for found in GENERATED.finditer(text)) or text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_measured_number_in_prose_stands_in_a_table(page: Path) -> None:
    wrong = [f"{sorted(missing)}: {sentence}" for sentence, missing, command in untold(page) if command is None]
    assert not wrong, "\n".join(
        ["say these in words, as the table has them, or with <!-- measured: COMMAND -->:", *wrong]
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_command_that_measures_is_one_of_this_repository_and_is_needed(page: Path) -> None:
    text = GENERATED.sub("", page.read_text(encoding="utf-8"))
    commands = [" ".join(command.split()) for command in MEASURED.findall(text)]
    used = {" ".join(command.split()) for _, _, command in untold(page) if command}
    for command in commands:
        python, script, *given = shlex.split(command)
        assert python == "python" and (ROOT / script).is_file(), command
        assert all("=" in word or word.startswith("-") for word in given), command
        assert command in used, f"{page.name}: every number of its paragraph is in a table: {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_commit_that_runs_name_is_there_or_the_prose_says_that_it_is_not(page: Path) -> None:
    if _git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("no whole history here to look commits up in")
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^Commits? of the runs: (.*)$", text, re.MULTILINE)
    prose = GENERATED.sub("", text)
    lost = {
        commit
        for line in lines
        for commit in re.findall(r"`(\w+)`", line)
        if _git("cat-file", "-t", commit) != "commit"
    }
    assert {commit for commit in lost if f"`{commit}`, is not in this history" not in " ".join(prose.split())} == set()
    named = set(re.findall(r"(?:commit|since|is) `?([0-9a-f]{7,12})`?\b", prose)) - lost
    assert {commit for commit in named if _git("cat-file", "-t", commit) != "commit"} == set()


def _git(*words: str) -> str:
    """What git says of this repository; nothing where it or the repository is not there."""
    try:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def test_what_counts_as_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page 1.5\n\nIn 2026, 12 runs of `x=0.25` (Table 1.1, App. E.9, arXiv:2605.05802) took 1.50 s, 40, 50 and 60 % at\n"
        "1,116 points [-3.0, 4.0]. Not 60.0 points.\n\n    python x.py 9.75\n\n- An item of 7.25.\n"
        "- Another of 8.125 <!-- measured: python train.py seed=1 -->.\n\n"
        "<!-- table:t -->\n| +1.5 | 40 | 50.0 | 60 | 1116 | [3.00, 4.00] | `7.25` |\n<!-- /table:t -->\n"
    )
    assert [(missing, command) for _, missing, command in untold(page)] == [
        ({"60.0"}, None),
        ({"7.25"}, None),
        ({"8.125"}, "python train.py seed=1"),
    ]
    other = tmp_path / "other.md"
    other.write_text("It is 1.5, [as there](page.md). It is 1.5.\n\n[There](page.md) it is 7.25: by hand.\n")
    assert [missing for _, missing, _ in untold(other)] == [{"1.5"}, {"7.25"}]
    assert said("a 50.3 % share [0.1, 2] over 3 seeds, 1.2.3, 12:30") == {"50.3", "0.1", "2"}
