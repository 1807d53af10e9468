"""Publishes finished runs on Weights & Biases (W&B) as a single W&B run with tables, rollouts and files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from turnwise.reports.find_runs import FinishedRuns
from turnwise.reports.recorded_paths import paths_of
from turnwise.reports.tables import Table
from turnwise.runs.json_lines import json_object

# files of each run in the W&B artifact; the copies that runs/keep_results.py makes have compressed metrics
KEPT = ("result.json", "config.yaml", "metrics.jsonl", "report.html")
ROLLOUT_COLUMNS: list[str | int] = ["run", "seed", "iteration", "state", "leaf", "turns", "total", "actions", "expert"]


@dataclass(frozen=True, slots=True)
class Published:
    """The location of a W&B run on this disk and, if it was uploaded, on the server."""

    folder: Path
    entity: str
    project: str
    url: str | None = None


def logged_in() -> bool:
    """Returns whether the W&B package finds an API key, without a prompt (``wandb login``, WANDB_API_KEY or netrc)."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    import wandb  # loading it takes 0.8 s

    try:
        return bool(wandb.login(prompt=False))
    except wandb.errors.Error:
        return False


def publish(
    collection: FinishedRuns,
    tables: Sequence[Table],
    page: Path,
    project: str,
    entity: str | None,
    title: str,
    folder: Path,
    offline: bool,
    rollouts: int = 200,
) -> Published:
    """Writes one W&B run that contains the tables, the comparison page, and the rollouts and files of every finished
    run.

    Args:
        tables: the tables of ``scripts/report.py``; each becomes a W&B table with the same title and cells.
        page: path of the self-contained comparison page.
        folder: the folder in which W&B writes. An offline bundle stays there until ``wandb sync`` uploads it.
        rollouts: largest number of rollouts of each run in the table of rollouts. The latest rollouts are used.

    Raises:
        wandb.errors.Error: W&B refused the run.
    """
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    mode: Any = "offline" if offline else "online"
    settings = wandb.Settings(console="off", silent=True, x_disable_stats=True)
    run = wandb.init(
        project=project, entity=entity, name=title, job_type="report", dir=str(folder), mode=mode, settings=settings
    )
    columns: list[str | int]
    try:
        for number, table in enumerate(tables):
            columns = [*table.headers]
            shown = wandb.Table(columns=columns, data=[list(row) for row in table.rows])
            run.log({f"tables/{number}_{_slug(table.title)}": shown})
        rows = [row for at in collection.folders for row in islice(rollout_rows(at), rollouts)]
        if rows:
            run.log({"rollouts": wandb.Table(columns=ROLLOUT_COLUMNS, data=rows)})
        run.log({"report": wandb.Html(str(page))})
        artifact = wandb.Artifact(f"{_slug(title)}-runs", type="runs", description="the runs that the tables show")
        above = os.path.commonpath([at.resolve().parent for at in collection.folders])
        for at in collection.folders:
            for name in KEPT:
                if (at / name).exists():
                    artifact.add_file(str(at / name), name=f"{at.resolve().relative_to(above).as_posix()}/{name}")
        artifact.add_file(str(page), name="comparison.html")
        run.log_artifact(artifact)
        run.summary.update({"runs": len(collection.folders)})
        return Published(Path(run.dir).parent, run.entity, run.project, None if offline else run.url)
    finally:
        run.finish()
        wandb.teardown()  # ends the background process of W&B, which then completes the bundle


def rollout_rows(folder: Path) -> Iterator[list[Any]]:
    """Yields a row (``ROLLOUT_COLUMNS``) for each leaf of a run's recorded rollout trees, latest iteration first."""
    files = sorted((folder / "rollouts").glob("*.jsonl"))
    lines = (line for file in reversed(files) for line in reversed(file.read_text(encoding="utf-8").splitlines()))
    for line in lines:
        tree = json_object(line)
        if tree is None:
            continue
        turns = tree["turns"]
        paths = paths_of(turns)
        totals = tree.get("rewards", {}).get("total") or [None] * len(paths)
        for path, total in zip(paths, totals, strict=False):
            actions = "\n".join(turns[i]["text"] for i in path)
            name, seed = folder.parent.name, folder.name.removeprefix("seed")
            state = tree["state"]["id"]
            yield [name, seed, tree["iteration"], state, path[-1], len(path), total, actions, tree.get("expert") or ""]


def report_of(published: Published, title: str, markdown: str) -> Any:
    """Returns a W&B report about a published run, which is not yet saved: the tables as text, then the table of
    rollouts. Returns None if the package wandb-workspaces is not installed.
    """
    try:
        import wandb_workspaces.reports.v2 as wr  # an optional package
    except ImportError:
        return None
    where = {"entity": published.entity, "project": published.project}
    rollouts = wr.PanelGrid(runsets=[wr.Runset(**where)], panels=[wr.WeavePanelSummaryTable(table_name="rollouts")])
    return wr.Report(**where, title=title, blocks=[wr.MarkdownBlock(markdown), wr.H2("Rollouts"), rollouts])


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text.lower())[:60].strip("-") or "table"
