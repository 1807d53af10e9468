"""LaTeX tables, and the same cells in LaTeX, Markdown and HTML, each read back by a parser of its own."""

from __future__ import annotations

import importlib.util
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec, get_default_latex_context_db
from pylatexenc.latexwalker import LatexEnvironmentNode, LatexWalker

from turnwise.reports.latex import escape, to_latex
from turnwise.reports.tables import Table

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("report_for_latex", ROOT / "scripts" / "report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("55.2 +- 6.4", r"55.2 $\pm$ 6.4"),
        ("-9.83", "$-$9.83"),
        ("[-1.6, +0.7]", "[$-$1.6, +0.7]"),
        ("Qwen3-8B", "Qwen3-8B"),
        ("d_10 < 0.12 & 50 %", r"d\_10 $<$ 0.12 \& 50 \%"),
        ("a > b - 2", "a $>$ b - 2"),
        (r"{x}\y#$~^|", r"\{x\}\textbackslash{}y\#\$\textasciitilde{}\textasciicircum{}$|$"),
        ("hash `9f_2c`", r"hash \texttt{9f\_2c}"),
        ("-", "-"),
    ],
)
def test_text_is_escaped(text: str, latex: str) -> None:
    assert escape(text) == latex
    assert clean(read(latex)) == text.replace("`", "")


def test_a_table_has_rules_a_caption_a_label_and_notes() -> None:
    told = to_latex([Table("Ours & theirs", ["row", "score"], [["a_b", "1.0"]], ["Note: 95 %."])], ["Written by x."])
    assert r"\toprule" in told and r"\midrule" in told and r"\bottomrule" in told
    assert r"\caption{Ours \& theirs}" in told and r"\label{tab:ours-theirs}" in told
    assert r"\begin{tabular}{lr}" in told and r"a\_b & 1.0 \\" in told
    assert r"\footnotesize Note: 95 \%.\par" in told
    assert told.endswith("% Written by x.\n")
    assert "resizebox" not in told
    assert "resizebox" in to_latex([Table("wide", list("abcdef"), [list("123456")])])


def read(latex: str) -> str:
    r"""As pylatexenc shows it; of the macros it lacks \texttt."""
    known = get_default_latex_context_db()
    known.add_context_category("code", macros=[MacroTextSpec("texttt", "%s")], prepend=True)
    return LatexNodes2Text(latex_context=known).latex_to_text(latex)


def latex_grids(text: str) -> list[list[list[str]]]:
    """Rows of cells of every tabular, as pylatexenc shows them."""

    def environments(nodes, name):
        for node in nodes or ():
            if isinstance(node, LatexEnvironmentNode) and node.environmentname == name:
                yield node
            for part in (getattr(node, "nodelist", None), getattr(getattr(node, "nodeargd", None), "argnlist", None)):
                yield from environments(part, name)

    nodes, _, _ = LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
    grids = []
    for node in environments(nodes, "tabular"):
        body = node.latex_verbatim().partition("}")[2]  # after \begin{tabular}
        body = body.partition("}")[2].rpartition(r"\end{tabular}")[0]  # and its columns
        for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
            body = body.replace(rule, "")
        rows = [row.strip() for row in body.split(r"\\") if row.strip()]
        grids.append([[clean(read(cell.strip())) for cell in re.split(r"(?<!\\)&", row)] for row in rows])
    return grids


def markdown_grids(text: str) -> list[list[list[str]]]:
    grids: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("|"):
            if not inside:
                grids.append([])
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])]
            if set("".join(cells)) - set("-:"):
                grids[-1].append([clean(cell.replace("\\|", "|")) for cell in cells])
            elif len(grids[-1]) > 1:
                grids[-1].append(cells)
        inside = line.startswith("|")
    return grids


class Tables(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.grids: list[list[list[str]]] = []
        self.cell = False

    def handle_starttag(self, tag, attrs):
        if tag == "table":
            self.grids.append([])
        elif tag == "tr":
            self.grids[-1].append([])
        elif tag in ("td", "th"):
            self.grids[-1][-1].append("")
            self.cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.cell = False

    def handle_data(self, data):
        if self.cell:
            self.grids[-1][-1][-1] += data


def html_grids(text: str) -> list[list[list[str]]]:
    parser = Tables()
    parser.feed(text)
    return [[[clean(cell) for cell in row] for row in grid] for grid in parser.grids]


def in_one_order(grids: list[list[list[str]]]) -> list[list[list[str]]]:
    """A page begins with the claims and has their verdict early, as words alone; cells and rows are the same."""
    found = []
    for grid in grids:
        last = grid[0].index("verdict") if "verdict" in grid[0] else None
        words = [" ".join(re.sub(r"[_:,]", " ", row[last]).split()) if last is not None else "" for row in grid]
        found.append(
            [[*(c for i, c in enumerate(row) if i != last), word] for row, word in zip(grid, words, strict=True)]
        )
    return sorted(found)


def clean(cell: str) -> str:
    return " ".join(cell.replace("±", "+-").replace("−", "-").replace("ˆ", "^").replace("`", "").split())


def save_run(folder: Path, make, seed: int, name: str, shift: float) -> None:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(make.result(seed=seed, shift=shift + 0.5 * seed, name=name)))


@pytest.mark.parametrize("way", ["sweep", "folders"])
def test_three_formats_show_the_same_numbers(script, way, make, tmp_path, capsys) -> None:
    outputs = tmp_path / "outputs"
    for row, shift in (("base", -20.8), ("sft", -9.0), ("full", 0.0), ("no_filter", -4.0)):
        for seed in range(2):
            save_run(outputs / "pivotrl" / "tab4" / row / f"seed{seed}", make, seed, f"pivotrl/tab4/{row}", shift)
    files = {kind: tmp_path / f"table.{kind}" for kind in ("tex", "md", "html")}
    sweep = ROOT / "conf" / "sweep" / "pivotrl_tab4.yaml"
    words = ["sweep=pivotrl_tab4", f"outputs={outputs}"] if way == "sweep" else [str(outputs), "--paper", str(sweep)]
    written = ["--latex", str(files["tex"]), "--markdown", str(files["md"]), "--html", str(files["html"])]
    assert script.main([*words, *written]) == 0
    capsys.readouterr()
    tex, markdown, html = (files[kind].read_text() for kind in ("tex", "md", "html"))
    grids = latex_grids(tex)
    assert grids == markdown_grids(markdown)
    assert in_one_order(grids) == in_one_order(html_grids(html))
    cells = " ".join(cell for grid in grids for row in grid for cell in row)
    assert "63.81" in cells and "+-" in cells and "0, 1" in cells
    assert ("holds" in cells or "undecided" in cells) if way == "sweep" else "open" in cells or "holds" in cells
    assert "scale tiny" in tex and "scale tiny" in markdown and "scale tiny" in html
    assert "Written by" in tex


@pytest.mark.slow
def test_a_summary_in_a_file_has_every_entry(script, tmp_path, capsys) -> None:
    tex = tmp_path / "all.tex"
    assert script.main(["summary", f"outputs={tmp_path}", "--latex", str(tex), "--json"]) == 0
    counts = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert set(counts) == {"PivotRL", "AWPO", "TRACE", "Selective Rollout"}
    entries = len(list((ROOT / "conf" / "sweep").glob("*.yaml")))
    assert tex.read_text().count(r"\begin{table}") > entries
    assert len(latex_grids(tex.read_text())) == tex.read_text().count(r"\begin{table}")
