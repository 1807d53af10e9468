"""Shows one run: the summary on the terminal, its page ``report.html``, the browser of its rollout trees
(``rollouts.html``), and the progress of runs that are under way.
"""

from __future__ import annotations

import base64
import gzip
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.rule import Rule
from rich.table import Table as RichTable
from rich.text import Text

from turnwise.console import Terminal
from turnwise.runs.result_file import (
    Comparison,
    HeldOut,
    InDomain,
    Replies,
    Result,
    ResultError,
    progress,
    read_result,
    read_status,
    remaining,
)
from turnwise.text import plain
from turnwise_study import tables
from turnwise_study.figures import run_figures
from turnwise_study.run_files import (
    ReportedRun,
    clip,
    fault_of,
    goal,
    line_counts,
    pair_views,
    read_run,
    spaced_trees,
)
from turnwise_study.runs import judged_on_dialogues
from turnwise_study.tables import count, duration, interval, nats, percent, signed, write_page

CONFIG_LIMIT = 120_000  # largest number of characters of the configuration on the page
BROWSER = "rollouts.html"
CHARACTERS = 64_000_000  # largest total size in bytes of the trees in the browser, before compression
TURNS = 2_000  # largest number of turns of one tree in the browser
KINDS = {
    "solved": "failed before, solved after",
    "lost": "solved before, failed after",
    "kept": "solved both times",
    "failed": "failed both times",
}
REPLY_KINDS = {kind: text.replace("solved", "accepted").replace("failed", "refused") for kind, text in KINDS.items()}
STYLES = {"better": "bold green", "worse": "bold red", "unclear": "bold yellow", "unfinished": "bold yellow"}


def verdict(change: Comparison) -> Literal["better", "worse", "unclear", "unfinished"]:
    """How a quantity changed through training. ``unclear``: the interval contains zero, or is unknown."""
    if change.after is None:
        return "unfinished"
    low, high = change.delta_ci95 or (0.0, 0.0)
    return "better" if low > 0 else "worse" if high < 0 else "unclear"


def summary(result: Result) -> dict[str, str]:
    """Name -> value as text of what a run measured, with the change of its main number first."""
    main, ood, held_out, dialogues = result.in_domain, result.ood, result.held_out, judged_on_dialogues(result)
    rows = {"accepted replies" if dialogues else "held-out success": f"{_moved(main)}: {verdict(main)}"}
    if held_out is not None:
        nll = held_out.nll
        rows["held-out replies"] = (
            f"{count(held_out.replies)} of {count(held_out.dialogues)} dialogues; {nats(nll.base)} to {nats(nll.after)} "
            f"nats a token {interval(nll.delta_ci95, lambda x: nats(x, True))}; equal {_moved(held_out.strict)}"
        )
    if ood.mean_change is not None:
        rows["out of domain"] = (
            f"{signed(ood.mean_change)} points {interval(ood.mean_change_ci95)}, {len(ood.suites)} suites"
        )
    seconds = result.wall_seconds or sum(result.seconds.values())
    sampled = f"{count(result.rollout_turns)} turns, {count(result.rollout_tokens)} tokens, "
    rows["cost"] = f"{sampled if result.rollout_turns else ''}{duration(seconds)}"
    if result.profile_turns:
        rows["profiles"] = f"{count(result.profile_turns)} turns, {count(result.profile_tokens)} tokens"
    counted: dict[str, Mapping[str, Any]] = {
        "faults": result.faults,
        "verifier": result.verifier,
        "judge": result.judge,
        "gate": result.gate,
    }
    rows |= {name: _counts(values) for name, values in counted.items() if any(values.values())}
    return rows | {"scale": result.scale}


def _moved(change: Comparison) -> str:
    over = f", {count(change.tasks)} tasks" if change.tasks else ""
    points = f"{signed(change.delta)} points {interval(change.delta_ci95)}"
    return f"{percent(change.base)} to {percent(change.after)} ({points}{over})"


def _counts(values: Mapping[str, Any]) -> str:
    parts = (
        f"{name}: ({_counts(value)})" if isinstance(value, Mapping) else f"{name} {tables.short(value)}"
        for name, value in values.items()
        if value is not None
    )
    return ", ".join(parts)


def print_summary(result: Result, report: Path | str | None = None, console: Terminal | None = None) -> None:
    """Prints the summary of a run. The colour of the first line says whether the run became better or worse."""
    console = console or Terminal()
    console.print(Rule(plain(f"{result.method} on {result.env}, seed {result.seed}"), align="left"))
    rows = [*summary(result).items(), *(("warning", text) for text in result.warnings)]
    if report is not None:
        rows.append(("report", str(report)))
        if (browser := Path(report).with_name(BROWSER)).exists():
            rows.append(("every rollout", str(browser)))
    block = RichTable.grid(padding=(0, 2))
    for number, (name, value) in enumerate(rows):
        style = STYLES[verdict(result.in_domain)] if number == 0 else ""
        block.add_row(name, Text(plain(value), style=style, overflow="fold"))
    console.print(block)


def write_pages(folder: Path | str) -> Path:
    """Writes ``report.html`` and, if the run recorded rollout trees, ``rollouts.html``. Returns the path of the report."""
    write_browser(folder)  # written first, because the report links to it
    return write_report(folder)


def write_report(folder: Path | str) -> Path:
    """Writes ``<folder>/report.html`` from the files in the run folder, and returns its path."""
    path = Path(folder) / "report.html"
    write_page(path, render(read_run(folder)))
    return path


def render(run: ReportedRun) -> str:
    result, status = run.result, None if run.result else run.status
    return tables.render(
        "report.html.jinja",
        run=run,
        result=result,
        title=report_title(run),
        status=status,
        kind=verdict(result.in_domain) if result else "",
        summary=summary(result) if result else {},
        rows=domain_rows(result) if result else [],
        dialogues=bool(result and judged_on_dialogues(result)),
        replies=reply_rows(result.held_out) if result and result.held_out else [],
        figures=run_figures(run),
        pairs=pair_views(run.episodes),
        kinds=KINDS if run.pair_mode.endswith("episodes") else REPLY_KINDS,
        command=_command(run),
        config=run.config_text[:CONFIG_LIMIT],
        browser=(run.folder / BROWSER).exists(),
    )


def report_title(run: ReportedRun) -> str:
    if result := run.result:
        return f"{result.method} on {result.env}, seed {result.seed}"
    data, env, states = (
        part if isinstance(part := run.config.get(key), dict) else {} for key in ("data", "env", "states")
    )
    world = str(env.get("_target_", "")).partition("turnwise_worlds.")[2].partition(".")[0]
    if data.get("file") and not str(states.get("_target_", "")).endswith("TaskStarts"):
        world = Path(str(data["file"])).name
    named = f"{run.config.get('method', run.folder.name)}{f' on {world}' if world else ''}"
    return f"{named}, seed {run.config['seed']} (unfinished)" if "seed" in run.config else f"{named} (unfinished)"


def _command(run: ReportedRun) -> str:
    recorded = run.result or run.status
    known = [f"{key}={getattr(run.result, key)}" for key in ("method", "env", "scale", "seed")] if run.result else []
    return (recorded.command if recorded else "") or shlex.join(["python", "train.py", *known])


def in_domain_rows(result: InDomain) -> list[tuple[str, str, Comparison]]:
    """Rows (decoding mode, split, comparison). The decoding mode of the report's main number comes first. Each mode has
    a row for all held-out tasks, for each split and for each subset. The last rows hold pass@k.
    """
    modes = {mode: part for mode in ("greedy", "sampled") if (part := getattr(result, mode)) is not None}
    same = next((m for m, part in modes.items() if (part.base, part.after) == (result.base, result.after)), None)
    modes = {same or "headline": result, **{mode: part for mode, part in modes.items() if mode != same}}
    rows: list[tuple[str, str, Comparison]] = []
    for mode, part in modes.items():
        rows += [(mode, "all held-out", part), *((mode, split, one) for split, one in part.by_split.items())]
        rows += [(mode, f"subset {name}", one) for name, one in part.by_subset.items()]
        rows += [(mode, "mean of subsets", part.subset_mean)] if part.subset_mean else []
    for k, value in sorted(result.pass_at_k.items(), key=lambda item: (len(item[0]), item[0])):
        rows.append((f"pass@{k}", "all held-out", value if isinstance(value, Comparison) else Comparison(after=value)))
    return rows


def domain_rows(result: Result) -> list[tuple[str, str, Comparison]]:
    """The rows on tasks of an environment, even if the report's main number is about held-out dialogues."""
    if result.held_out is None or result.in_domain.by_split:
        return in_domain_rows(result.in_domain)
    return in_domain_rows(result.environment) if result.environment else []


def reply_rows(held_out: HeldOut) -> list[tuple[str, Replies]]:
    """Rows (label, held-out replies): all, by the tool that the demonstration calls, and by turn."""
    parts = {"replies in text" if tool == "no_call" else f"calls of {tool}": p for tool, p in held_out.by_tool.items()}
    turns = [(f"reply {turn} of a dialogue", part) for turn, part in held_out.by_turn.items()]
    return [("all replies", held_out), *parts.items(), *turns]


def write_browser(folder: Path | str) -> Path | None:
    """Writes ``<folder>/rollouts.html`` with all recorded trees, and returns its path, or None without a tree."""
    folder = Path(folder)
    trees, total = packed(folder)
    if not trees:
        return None
    try:
        result = read_result(folder)
        title = f"Rollouts of {result.method} on {result.env}, seed {result.seed}"
    except ResultError:
        title = f"Rollouts of {folder.name} (unfinished)"
    data = gzip.compress(json.dumps(trees, separators=(",", ":"), allow_nan=False).encode(), mtime=0)
    page = tables.render(
        "rollouts.html.jinja",
        title=title,
        folder=folder.name,
        total=total,
        left_out=total - len(trees),
        data=base64.b64encode(data).decode(),
        **tables.script("rollouts.js"),
    )
    write_page(folder / BROWSER, page)
    return folder / BROWSER


def packed(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The rollout trees for the script of ``rollouts.html``, in the order of training, and the number of recorded
    trees. Of too many trees, a part is returned, evenly spaced over training. Unreadable trees are left out.
    """
    paths = sorted((folder / "rollouts").glob("*.jsonl"))
    counts, size = line_counts(paths), sum(path.stat().st_size for path in paths)
    total = sum(counts.values())
    return list(_trees(counts, total if size <= CHARACTERS else total * CHARACTERS // size)), total


def _trees(counts: Mapping[Path, int], most: int) -> Iterator[dict[str, Any]]:
    for tree in spaced_trees(counts, most, []):
        try:
            yield _tree(tree)
        except (AttributeError, KeyError, TypeError):  # the tree does not have the form that a run records
            continue


def _tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    state, turns = tree["state"], [turn for turn in tree["turns"] if isinstance(turn, dict)][:TURNS]
    cut = len(turns) < len(tree["turns"])  # if the tree is cut, its rewards no longer match its leaves
    rewards = tree["rewards"] if isinstance(tree.get("rewards"), dict) and not cut else {}
    messages = [(str(m.get("role", "?")), str(m.get("content") or "")) for m in state.get("messages") or ()]
    return {
        "task": str(state.get("task") or state.get("id")),
        "type": state.get("type"),
        "turn": state.get("turn"),
        "iteration": tree.get("iteration"),
        "messages": [[role, clip(text)] for role, text in messages],
        "goal": goal(messages),
        "expert": clip(tree["expert"]) if tree.get("expert") else None,
        "turns": [_turn(turn, place) for place, turn in enumerate(turns)],
        "rewards": {str(name): [_finite(v) for v in values] for name, values in rewards.items()},
        "stopped": bool(tree.get("stopped")),
        "looks": [
            {"step": look["step"], "values": {k: _finite(v) for k, v in look["values"].items()}, "stop": look["stop"]}
            for look in tree.get("looks") or ()
        ],
    }


def _turn(turn: Mapping[str, Any], place: int) -> dict[str, Any]:
    parent, fault = turn.get("parent", -1), fault_of(turn)
    return {
        "parent": parent if isinstance(parent, int) and -1 <= parent < place else -1,
        "text": clip(turn.get("text")),
        "observation": clip(fault or turn.get("observation"), 600),
        "reward": None if fault else _finite(turn.get("reward")),
        "done": bool(turn.get("done")),
        "tokens": turn.get("tokens") or 0,
        "logprob": _finite(turn.get("logprob")),
        "advantage": _finite(turn.get("advantage")),
    }


def _finite(value: Any) -> float | None:
    """Returns ``value`` if it is a finite number, otherwise None, because JSON has no infinite numbers and no NaN."""
    return value if isinstance(value, int | float) and abs(value) < float("inf") else None


def watch(
    folders: Sequence[Path], console: Terminal, every: float = 1.0, sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Prints a line whenever one of the runs progresses, until all have ended. Returns whether each has a result."""
    last: dict[Path, str] = {}
    while True:
        running = False
        for folder in folders:
            status, finished = read_status(folder), (folder / "result.json").exists()
            line = "" if status is not None else "no status; the run has not started"
            if finished:
                line = f"finished; {next(iter(summary(read_result(folder)).values()))}"
            if status is not None and not finished:
                running = running or status.running
                where = progress(status) if status.running else f"{status.state} while {progress(status)} {status.why}"
                line = f"{where} {remaining(status) if status.running else status.command}"
            if last.get(folder) != line:
                last[folder] = line
                console.print(plain(f"{folder}: {line}"), highlight=False, soft_wrap=True)
        if not running:
            return all((folder / "result.json").exists() for folder in folders)
        sleep(every)
