"""Writes ``report.html``: one self-contained page for a run, with inline style, drawings and script."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from time import localtime, strftime
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from turnwise.files import atomic_write
from turnwise.reports import sentences
from turnwise.reports.claim_verdict import tally
from turnwise.reports.find_runs import FinishedRuns, Interval, RunRow
from turnwise.reports.html_tables import Runs, box, with_verdicts
from turnwise.reports.latest_numbers import so_far
from turnwise.reports.overlaid_training_curves import overlays
from turnwise.reports.read_run import ReportedRun, read_run
from turnwise.reports.result_rows import domain_rows, reply_rows
from turnwise.reports.run_figures import comparison, run_figures
from turnwise.reports.same_tasks import task_notes
from turnwise.reports.svg import Figure
from turnwise.reports.tables import Table
from turnwise.reports.tree_views import pair_views, tree_views
from turnwise.runs.status_file import Status, progress, remaining

BROWSER = "rollouts.html"  # name of the page that turnwise.reports.rollout_browser writes
CONFIG_LIMIT = 120_000  # largest number of characters of the configuration on the page
KINDS = {
    "solved": "failed before, solved after",
    "lost": "solved before, failed after",
    "kept": "solved both times",
    "failed": "failed both times",
}


def write_report(folder: Path | str, status: Status | None = None) -> Path:
    """Writes ``<folder>/report.html`` from the files in the run folder, and returns its path.

    Args:
        status: the status of a run in progress. None: the status is read from ``status.json``.

    Raises:
        FileNotFoundError: ``folder`` is not a folder.
        OSError: the page cannot be written; the previous version of the page is kept.
    """
    path = Path(folder) / "report.html"
    run = read_run(folder)
    run.status = status or run.status
    write_page(path, render(run))
    return path


def write_page(path: Path, page: str) -> None:
    """Writes a page atomically: readers see the previous page until the new page is complete."""
    with atomic_write(path) as part:
        part.write_text(page, encoding="utf-8")


def render(run: ReportedRun) -> str:
    """Returns the report of one run as HTML text."""
    result, status = run.result, None if run.result else run.status
    trees = tree_views(run.rollouts.shown)
    return environment().get_template("report.html.jinja").render(
        run=run,
        result=result,
        title=title(run),
        status=status,
        live=bool(status and status.running),
        so_far=so_far(run),
        verdict=sentences.result_verdict(result) if result else None,
        rows=domain_rows(result) if result else [],
        dialogues=bool(result and sentences.judged_on_dialogues(result)),
        replies=reply_rows(result.held_out) if result and result.held_out else [],
        figures=run_figures(run),
        trees=trees,
        pairs=pair_views(run.episodes),
        kinds=KINDS,
        command=_command(run),
        recorded=bool(run.overrides or (result and result.command) or (status and status.command)),
        config=run.config_text[:CONFIG_LIMIT],
        browser=(run.folder / BROWSER).exists(),
        **(script("figures.js", "live.js") if status and status.running else {}),
    )  # fmt: skip


def title(run: ReportedRun) -> str:
    """Returns the title of a run's report, which names the method, environment and seed. They are taken from the run's
    result, or from its configuration if it has no result.
    """
    if result := run.result:
        return f"{result.method} on {result.env}, seed {result.seed}"
    domain = _domain(run.config)
    named = f"{run.config.get('method', run.folder.name)}{f' on {domain}' if domain else ''}"
    return f"{named}, seed {run.config['seed']} (unfinished)" if "seed" in run.config else f"{named} (unfinished)"


def _domain(config: Mapping[str, Any]) -> str:
    """Returns the name of the data file from which an unfinished run learns. If the run starts its episodes from tasks
    or has no data file, returns the name of its environment. The text is empty if the configuration has neither.
    """
    data, env, states = (part if isinstance(part := config.get(key), dict) else {} for key in ("data", "env", "states"))
    if data.get("file") and not str(states.get("_target_", "")).endswith("TaskStarts"):
        return Path(str(data["file"])).name
    target = str(env.get("_target_", ""))  # for example turnwise.envs.household.HouseholdEnv
    return target.partition(".envs.")[2].partition(".")[0] or target.rpartition(".")[2]


def comparison_page(
    collection: FinishedRuns,
    tables: Sequence[Table],
    lines: Sequence[str],
    interval: Interval,
    first: Sequence[Figure] = (),
    page: Path | None = None,
) -> str:
    """Returns a page that compares runs, as HTML text. The page shows the figures ``first``, the tables, and drawings
    of every row: its training curves, and how training changed its scores.

    Args:
        page: path at which the page will be written. Links to the runs are relative to it. If it is None, there are no
            links.
    """
    rows = [row for found in collection.sections.values() for row in found]
    names = Counter(row.name for row in rows)
    runs = {row.name: row.folders for row in rows if names[row.name] == 1}
    number = sum(len(row.results) for row in rows)
    figures = [*first, *comparison_figures(collection, interval), *comparison_curves(collection, interval)]
    return tables_page(f"{number} runs compared", tables, lines, figures, runs, page, task_notes(collection))


def tables_page(
    title: str,
    tables: Sequence[Table],
    lines: Sequence[str],
    figures: Sequence[Figure] = (),
    runs: Runs | None = None,
    page: Path | None = None,
    warnings: Sequence[str] = (),
) -> str:
    """Returns a page as HTML text. It shows the table with verdicts, then the drawings, then the other tables, then
    ``lines``.

    Args:
        runs, page: the folders of the runs by row and seed, and the path at which the page will be written. Both are
            needed for links to the runs.
    """
    first = with_verdicts(tables)
    return environment().get_template("comparison.html.jinja").render(
        title=title,
        tally=tally(first),
        first=None if first is None else box(first, runs or {}, page),
        tables=[box(table, runs or {}, page) for table in tables if table is not first],
        figures=figures,
        lines=lines,
        warnings=warnings,
    )  # fmt: skip


def comparison_figures(collection: FinishedRuns, interval: Interval) -> list[Figure]:
    """Draws how held-out success and the out-of-domain score of every row changed through training. There are at most
    two figures for each environment and scale.
    """
    figures = []
    for index, ((env, scale), rows) in enumerate(collection.sections.items()):
        for metric, title in (("in_domain.delta", "Held-out change"), ("ood.mean_change", "Out-of-domain change")):
            drawn = [_drawn(row, metric, interval) for row in rows if row.values(metric)]
            if drawn:
                figures.append(comparison(drawn, f"{title}: {env}, {scale}", f"compare-{index}-{metric.split('.')[0]}"))
    return figures


def comparison_curves(collection: FinishedRuns, interval: Interval) -> list[Figure]:
    """Draws, for each environment and scale, the training curves of all rows in the same axes."""
    drawn = (
        overlays(rows, interval, f"Training curves: {env}, {scale}", f"curves-{index}")
        for index, ((env, scale), rows) in enumerate(collection.sections.items())
    )
    return [figure for figure in drawn if figure is not None]


def _drawn(row: RunRow, metric: str, interval: Interval) -> tuple[str, float, tuple[float, float] | None]:
    estimate = interval(list(row.values(metric).values()))
    bounds = None if estimate.low is None or estimate.high is None else (estimate.low, estimate.high)
    return row.name, estimate.mean, bounds


def script(*names: str) -> dict[str, str]:
    """Returns the text of the scripts ``names`` from ``templates/`` for use in a page, and the hash of this text. The
    content security policy of the page allows only scripts with this hash.
    """
    text = "".join((files("turnwise.reports") / "templates" / name).read_text(encoding="utf-8") for name in names)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"script": Markup(text), "script_hash": f"sha256-{digest}"}


def environment() -> Environment:
    """Returns the jinja2 environment of the templates. It escapes all text, so that text from a model never becomes
    HTML markup.
    """
    folder = files("turnwise.reports") / "templates"
    sources = {item.name: item.read_text(encoding="utf-8") for item in folder.iterdir() if item.name.endswith(".jinja")}
    env = Environment(
        loader=DictLoader(sources), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for name in ("percent", "signed", "interval", "count", "duration", "nats"):
        env.filters[name] = getattr(sentences, name)
    env.filters["drawing"] = Markup  # marks text as safe HTML: only for SVG from reports.svg, which escapes its text
    env.globals.update(
        **script("figures.js"),
        progress=progress,
        remaining=remaining,
        clock=lambda seconds: strftime("%Y-%m-%d %H:%M:%S", localtime(seconds)),
        ood_sentence=sentences.ood_sentence,
        cost_sentence=sentences.cost_sentence,
        gate_sentence=sentences.gate_sentence,
        judge_sentence=sentences.judge_sentence,
        verifier_sentence=sentences.verifier_sentence,
        scale_sentence=sentences.scale_sentence,
        held_out_sentence=sentences.held_out_sentence,
    )
    return env


def _command(run: ReportedRun) -> str:
    """Returns the command line that repeats this run. It is taken from the run's result, its status or its Hydra
    overrides.
    """
    result = run.result
    if result is not None and result.command:
        return result.command
    if result is None and run.status is not None and run.status.command:
        return run.status.command
    overrides = run.overrides
    if not overrides and result is not None:
        overrides = [f"method={result.method}", f"env={result.env}", f"scale={result.scale}", f"seed={result.seed}"]
    return shlex.join(["python", "train.py", *overrides])
