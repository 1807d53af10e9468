"""docs/architecture.md lists every file of src with the first sentence of its docstring.

python -m tests.unit.test_docs_files    writes the list
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from turnwise_study.tables import cell, grid, write_section

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"


def listing() -> str:
    """A table for each package, without files that hold no code."""
    parts = []
    for package in sorted(path for path in (ROOT / "src").iterdir() if path.is_dir() and list(path.glob("*.py"))):
        rows = [
            (f"`{file.relative_to(package).as_posix()}`", cell(first_sentence(file).replace("``", "`")))
            for file in sorted(package.rglob("*.py"))
            if file.name != "__init__.py"
        ]
        parts.append(grid([f"`src/{package.name}/`", "what it holds"], rows))
    return "\n".join(parts)


def first_sentence(file: Path) -> str:
    paragraph = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split("\n\n")[0]
    return re.split(r"(?<!App)\.\s(?=[A-Z`{])", " ".join(paragraph.split()))[0].rstrip(".:")


def test_every_file_is_listed_by_the_first_sentence_of_its_docstring() -> None:
    page = PAGE.read_text(encoding="utf-8")
    written = page.partition("<!-- table:files -->")[2].partition("<!-- /table:files -->")[0]
    assert written.strip() == listing().strip(), "python -m tests.unit.test_docs_files writes the list anew"


if __name__ == "__main__":
    write_section(PAGE, listing(), "files")
