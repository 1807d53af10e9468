"""Shows one run: the summary on the terminal, its page ``report.html`` and the browser of its rollout trees
(``rollouts.html``). Both pages are drawn from the run's folder, as far as its files exist, and load nothing else.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from turnwise.console import Terminal
from turnwise.files import atomic_write
from turnwise.runs.figures import run_figures
from turnwise.runs.json_lines import json_object, noted_lines, raw_lines
from turnwise.runs.read_run import RunFiles, read_run
from turnwise.runs.result_file import Comparison, InDomain, Result
from turnwise.text import count, duration, interval, nats, percent, plain, signed

# -- the summary -------------------------------------------------------------------------------------------------------

STYLES = {"better": "bold green", "worse": "bold red", "unclear": "bold yellow", "unfinished": "bold yellow"}


def judged_on_dialogues(result: Result) -> bool:
    """Whether the main result of a run is about held-out dialogues and not about tasks of an environment."""
    return result.held_out is not None and not result.in_domain.by_split


def verdict(change: Comparison) -> Literal["better", "worse", "unclear", "unfinished"]:
    """How a quantity changed through training. ``unclear``: the interval contains zero, or is unknown."""
    if change.after is None:
        return "unfinished"
    low, high = change.delta_ci95 or (0.0, 0.0)
    return "better" if low > 0 else "worse" if high < 0 else "unclear"


def page_summary(result: Result) -> dict[str, str]:
    """Name -> value as text of what a run measured, with the change of its main number first."""
    main, ood, held_out, dialogues = result.in_domain, result.ood, result.held_out, judged_on_dialogues(result)
    first = "accepted replies" if dialogues else "held-out success"
    rows = {first: f"{_moved(main, 'replies' if dialogues else 'tasks')}: {verdict(main)}"}
    if not main.after and not main.base and main.after is not None:
        longer = "train on from this run's adapter (policy.start=, another name=), or all weights (policy.lora.r=0)"
        start = "start from the adapter of a run of method=sft that has some success (policy.start=)"
        rows["what to do"] = f"nothing succeeded yet: {start if result.rollout_turns else longer}"
    if held_out is not None:
        nll = held_out.nll
        rows["held-out replies"] = (
            f"{count(held_out.replies)} (dialogues: {count(held_out.dialogues)}); {nats(nll.base)} to {nats(nll.after)} "
            f"nats a token {interval(nll.delta_ci95, lambda x: nats(x, True))}; equal {_moved(held_out.strict)}"
        )
    if ood.mean_change is not None:
        rows["out of domain"] = (
            f"{signed(ood.mean_change)} points {interval(ood.mean_change_ci95)}, {len(ood.suites)} suites"
        )
    seconds = result.wall_seconds or sum(result.seconds.values())
    sampled = f"{count(result.rollout_turns)} turns, {count(result.rollout_tokens)} tokens, "
    phases = sorted(((s, phase) for phase, s in result.seconds.items() if s > 0), reverse=True)
    if phases and (rest := seconds - sum(result.seconds.values())) >= 1:
        phases.append((rest, "starting, loading and writing"))
    spent = f" ({', '.join(f'{phase} {duration(s)}' for s, phase in phases)})" if phases else ""
    rows["cost"] = f"{sampled if result.rollout_turns else ''}{duration(seconds)}{spent}"
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


def _moved(change: Comparison, what: str = "") -> str:
    over = f", {count(change.tasks)} {what}" if change.tasks else ""
    points = f"{signed(change.delta)} points {interval(change.delta_ci95)}"
    return f"{percent(change.base)} to {percent(change.after)} ({points}{over})"


def _counts(values: Mapping[str, Any]) -> str:
    parts = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            parts.append(f"{name}: ({_counts(value)})")
        elif value is not None:
            parts.append(f"{name} {count(value) if abs(value) >= 1000 else f'{value:.3g}'}")
    return ", ".join(parts)


def print_summary(result: Result, report: Path, console: Terminal) -> None:
    """Prints the summary of a run. The colour of the first line says whether the run became better or worse."""
    console.print(Rule(plain(result.title), align="left"))
    browser = report.with_name(BROWSER)
    rows = [*page_summary(result).items(), *(("warning", text) for text in result.warnings), ("report", str(report))]
    rows += [("every rollout", str(browser))] if browser.exists() else []
    block = Table.grid(padding=(0, 2))
    for number, (name, value) in enumerate(rows):
        style = STYLES[verdict(result.in_domain)] if number == 0 else ""
        block.add_row(name, Text(plain(value), style=style, overflow="fold"))
    console.print(block)


# -- the page ----------------------------------------------------------------------------------------------------------

CONFIG_LIMIT = 120_000  # largest number of characters of the configuration on the page


def write_pages(folder: Path | str) -> Path:
    """Writes ``report.html`` and, if the run recorded rollout trees, ``rollouts.html``. Returns the path of the report."""
    run = read_run(folder)
    write_browser(run)  # written first, because the report links to it
    return write_report(run)


def write_report(run: RunFiles) -> Path:
    path = run.folder / "report.html"
    write_page(path, report(run))
    return path


def write_page(path: Path, page: str) -> None:
    """Writes a page atomically: the previous page stays visible until the new page is complete."""
    with atomic_write(path) as part:
        part.write_text(page, encoding="utf-8")


def report(run: RunFiles) -> str:
    result = run.result
    return render_page(
        "report.html.jinja",
        run=run,
        result=result,
        title=title_of(run),
        kind=verdict(result.in_domain) if result else "",
        summary=page_summary(result) if result else {},
        rows=domain_rows(result) if result else [],
        dialogues=bool(result and judged_on_dialogues(result)),
        said=replies_said(run) if result and result.held_out else [],
        figures=run_figures(run),
        command=_command(run),
        config=run.config_text[:CONFIG_LIMIT],
        browser=(run.folder / BROWSER).exists(),
    )


def render_page(template: str, package: str = "turnwise.runs", **values: object) -> str:
    """Renders a template of this package, or of another one, whose templates may include those of this package."""
    sources = {
        item.name: item.read_text(encoding="utf-8")
        for place in {"turnwise.runs", package}
        for item in (files(place) / "templates").iterdir()
        if item.name.endswith(".jinja")
    }
    env = Environment(
        loader=DictLoader(sources), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    for show in (percent, signed, interval, count, nats):
        env.filters[show.__name__] = show
    env.filters["drawing"] = Markup  # marks text as safe HTML: only for SVG of runs.figures, which escapes its text
    return env.get_template(template).render(**values)


def title_of(run: RunFiles) -> str:
    if run.result:
        return run.result.title
    named = run.config.get("method", run.folder.name)
    return f"{named}{f', seed {seed}' if (seed := run.config.get('seed')) is not None else ''} (unfinished)"


def _command(run: RunFiles) -> str:
    known = [f"{key}={getattr(run.result, key)}" for key in ("method", "env", "scale", "seed")] if run.result else []
    return (run.result and run.result.command) or shlex.join(["python", "train.py", *known])


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
    if not judged_on_dialogues(result):
        return in_domain_rows(result.in_domain)
    return in_domain_rows(result.environment) if result.environment else []


def replies_said(run: RunFiles, most: int = 12) -> list[dict[str, Any]]:
    """Held-out replies, first those that training changed: the demonstrated one, and the policy's greedy ones before and
    after, with whether each is accepted.
    """
    files = [run.folder / "evaluation" / f"{name}.jsonl" for name in ("base", "after")]
    read = [noted_lines(file, run.notes) for file in files]
    base, after = ({row["reply"]: row for row in rows if row.get("reply")} for rows in read)
    rows = [
        {
            "reply": name,
            "expert": row.get("expert"),
            "base": before["said"],
            "after": row["said"],
            "marks": [bool(one["greedy"][0][0]) for one in (before, row)],
        }
        for name, row in after.items()
        if (before := base.get(name, {}))
        and all(one.get("said") is not None and one.get("greedy") for one in (before, row))
    ]
    return sorted(rows, key=lambda row: row["marks"][0] == row["marks"][1])[:most]


# -- the browser of rollouts -------------------------------------------------------------------------------------------

BROWSER = "rollouts.html"
CHARACTERS = 64_000_000  # largest total size in bytes of the trees in the browser, before compression
MESSAGE_LIMIT = 1_600  # largest number of characters of one message
TURNS = 2_000  # largest number of turns of one tree in the browser


def write_browser(run: RunFiles) -> Path | None:
    """Writes ``rollouts.html`` with all recorded trees into the run's folder, and returns its path, or None without a tree."""
    trees, total = page_trees(run.folder)
    if not trees:
        return None
    data = gzip.compress(json.dumps(trees, separators=(",", ":"), allow_nan=False).encode(), mtime=0)
    script = (files("turnwise.runs") / "templates" / "rollouts.js").read_text(encoding="utf-8")
    page = render_page(
        "rollouts.html.jinja",
        title=f"Rollouts of {title_of(run)}",
        folder=run.folder.name,
        total=total,
        left_out=total - len(trees),
        data=base64.b64encode(data).decode(),
        script=Markup(script),
        # the page's security policy allows the script by its hash
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )
    write_page(run.folder / BROWSER, page)
    return run.folder / BROWSER


def _messages(messages: object) -> list[tuple[str, str]]:
    listed = messages if isinstance(messages, list) else []
    return [(str(m.get("role", "?")), clip(m.get("content"))) for m in listed if isinstance(m, dict)]


def _spread(total: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, total - 1, min(most, total)).astype(int)).tolist() if total else []


def clip(text: object, limit: int = MESSAGE_LIMIT) -> str:
    """Returns ``text`` with about ``limit`` characters at most. A note replaces the middle of a longer text."""
    text = text if isinstance(text, str) else "" if text is None else str(text)
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[... {len(text) - head - tail:,} characters left out ...]\n{text[-tail:]}"


def page_trees(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """The rollout trees for the script of ``rollouts.html``, in the order of training, and the number of recorded
    trees. Of too many trees, a part is returned, evenly spaced over training. Unreadable trees are left out.
    """
    paths = sorted((folder / "rollouts").glob("*.jsonl"))
    size, total = sum(path.stat().st_size for path in paths), sum(1 for _ in raw_lines(paths))
    wanted = set(_spread(total, total if size <= CHARACTERS else total * CHARACTERS // size))
    trees = []
    for number, line in enumerate(raw_lines(paths)):
        if number in wanted:
            try:
                trees.append(_page_tree(json_object(line) or {}))
            except (AttributeError, KeyError, TypeError):  # the tree does not have the form that a run records
                continue
    return trees, total


def _page_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    state, turns = tree["state"], [turn for turn in tree["turns"] if isinstance(turn, dict)][:TURNS]
    cut = len(turns) < len(tree["turns"])  # if the tree is cut, its rewards no longer match its leaves
    rewards = tree["rewards"] if isinstance(tree.get("rewards"), dict) and not cut else {}
    messages = _messages(state.get("messages"))
    request = next((text for role, text in messages if role == "user"), "")
    return {
        "task": str(state.get("task") or state["id"]),
        "type": state.get("type"),
        "turn": state.get("turn"),
        "iteration": tree.get("iteration"),
        "messages": messages,
        "goal": clip(next((line for line in reversed(request.splitlines()) if line.strip()), ""), 300),  # the last line
        "expert": clip(tree["expert"]) if tree.get("expert") else None,
        "turns": [_page_turn(turn, place) for place, turn in enumerate(turns)],
        "rewards": {str(name): [_finite(v) for v in values] for name, values in rewards.items()},
        "stopped": bool(tree.get("stopped")),
        "looks": [
            {"step": look["step"], "values": {k: _finite(v) for k, v in look["values"].items()}, "stop": look["stop"]}
            for look in tree.get("looks") or ()
        ],
    }


def _page_turn(turn: Mapping[str, Any], place: int) -> dict[str, Any]:
    parent, info = turn.get("parent", -1), turn.get("info")
    fault = info.get("fault") if isinstance(info, dict) else None
    return {
        "parent": parent if isinstance(parent, int) and -1 <= parent < place else -1,
        "text": clip(turn.get("text")),
        "observation": clip(f"The environment failed: {fault}" if fault else turn.get("observation"), 600),
        "reward": None if fault else _finite(turn.get("reward")),
        "done": bool(turn.get("done")),
        "tokens": turn.get("tokens") or 0,
        "logprob": _finite(turn.get("logprob")),
        "advantage": _finite(turn.get("advantage")),
    }


def _finite(value: Any) -> float | None:
    """Returns ``value`` if it is a finite number, otherwise None, because JSON has no infinite numbers and no NaN."""
    return value if isinstance(value, int | float) and abs(value) < float("inf") else None
