"""Writes the HTML pages of a run: its report ``report.html``, and a page for browsing its recorded rollout trees."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.reports import sentences
from turnwise.reports.html_pages import environment, script, write_page
from turnwise.reports.metric_labels import success_keys
from turnwise.reports.read_run import ReportedRun, read_run
from turnwise.reports.result_rows import domain_rows, reply_rows
from turnwise.reports.rollout_browser import BROWSER, write_browser
from turnwise.reports.run_figures import run_figures
from turnwise.reports.tree_views import pair_views, tree_views
from turnwise.runs.status_file import Status

CONFIG_LIMIT = 120_000  # largest number of characters of the configuration on the page
NEWEST = {
    "train/reward_mean": ("mean reward, last iteration", "{:.2f}"),
    "rollout/turns": ("rollout turns", "{:,.0f}"),
    "rollout/tokens": ("rollout tokens", "{:,.0f}"),
}
KINDS = {
    "solved": "failed before, solved after",
    "lost": "solved before, failed after",
    "kept": "solved both times",
    "failed": "failed both times",
}


def write_pages(folder: Path | str) -> Path:
    """Writes ``report.html`` and, if the run recorded rollout trees, ``rollouts.html``. Returns the path of the report.

    Raises:
        FileNotFoundError: ``folder`` is not a folder.
        OSError: a page cannot be written; the previous page is kept.
    """
    write_browser(folder)  # written first, because the report links to it
    return write_report(folder)


def write_report(folder: Path | str, status: Status | None = None) -> Path:
    """Writes ``<folder>/report.html`` from the files in the run folder, and returns its path.

    Args:
        status: the status of a run in progress. None: the status is read from ``status.json``.

    Raises:
        FileNotFoundError: ``folder`` is not a folder.
        OSError: the page cannot be written; the previous page is kept.
    """
    path = Path(folder) / "report.html"
    run = read_run(folder)
    run.status = status or run.status
    write_page(path, render(run))
    return path


def render(run: ReportedRun) -> str:
    result, status = run.result, None if run.result else run.status
    trees = tree_views(run.rollouts.shown)
    return environment().get_template("report.html.jinja").render(
        run=run,
        result=result,
        title=report_title(run),
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


def so_far(run: ReportedRun) -> list[tuple[str, str]]:
    """Returns the latest numbers of a run that has no result yet, as pairs (value as text, label): the first and the
    latest evaluation, and the latest values of NEWEST.
    """
    tiles = []
    solved = {key: f"{split} tasks solved" for split, key in success_keys(run.metrics).items()}
    accepted = {key: "held-out replies accepted" for key in run.metrics if key == "eval/held_out/functional"}
    for key, name in (accepted | solved).items():
        iterations, values = run.series(key)
        tiles.append((sentences.percent(values[0]), f"{name} at iteration {iterations[0]}"))
        if len(values) > 1:
            tiles.append((sentences.percent(values[-1]), f"{name} at iteration {iterations[-1]}"))
    for key, (name, form) in NEWEST.items():
        values = run.series(key)[1]
        if len(values):
            tiles.append((form.format(values[-1]), name))
    return tiles


def report_title(run: ReportedRun) -> str:
    """Returns the title of a run's report, which names the method, environment and seed."""
    if result := run.result:
        return f"{result.method} on {result.env}, seed {result.seed}"
    domain = _domain(run.config)
    named = f"{run.config.get('method', run.folder.name)}{f' on {domain}' if domain else ''}"
    return f"{named}, seed {run.config['seed']} (unfinished)" if "seed" in run.config else f"{named} (unfinished)"


def _domain(config: Mapping[str, Any]) -> str:
    """Returns the name of an unfinished run's data file, or of its environment if the run starts from tasks."""
    data, env, states = (part if isinstance(part := config.get(key), dict) else {} for key in ("data", "env", "states"))
    if data.get("file") and not str(states.get("_target_", "")).endswith("TaskStarts"):
        return Path(str(data["file"])).name
    target = str(env.get("_target_", ""))  # for example turnwise.envs.household.HouseholdEnv
    return target.partition(".envs.")[2].partition(".")[0] or target.rpartition(".")[2]


def _command(run: ReportedRun) -> str:
    """Returns the command line that repeats this run, from its result, its status or its Hydra overrides."""
    result = run.result
    if result is not None and result.command:
        return result.command
    if result is None and run.status is not None and run.status.command:
        return run.status.command
    overrides = run.overrides
    if not overrides and result is not None:
        overrides = [f"method={result.method}", f"env={result.env}", f"scale={result.scale}", f"seed={result.seed}"]
    return shlex.join(["python", "train.py", *overrides])
