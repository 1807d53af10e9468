"""Writes ``rollouts.html``: all recorded rollout trees of a run on one self-contained page, with search and sorting."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnwise.reports.html_pages import environment, script, write_page
from turnwise.reports.read_run import line_counts, spaced_trees
from turnwise.reports.tree_views import clip, fault_of, goal
from turnwise.runs.result_file import ResultError, read_result

BROWSER = "rollouts.html"  # name of the page
CHARACTERS = 64_000_000  # largest total size in bytes of the trees on the page, before compression
TURNS = 2_000  # largest number of turns of one tree


def write_browser(folder: Path | str) -> Path | None:
    """Writes ``<folder>/rollouts.html`` and returns its path, or None if the run recorded no tree.

    Raises:
        OSError: the page cannot be written; the previous page is kept.
    """
    folder = Path(folder)
    found, total = packed(folder)
    if not found:
        return None
    text = json.dumps(found, separators=(",", ":"), allow_nan=False)
    page = environment().get_template("rollouts.html.jinja").render(
        title=f"Rollouts of {_title(folder)}",
        folder=folder.name,
        total=total,
        left_out=total - len(found),
        **script("rollouts.js"),
        data=base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode(),
    )  # fmt: skip
    path = folder / BROWSER
    write_page(path, page)
    return path


def _title(folder: Path) -> str:
    try:
        result = read_result(folder)
    except ResultError:
        return f"{folder.name} (unfinished)"
    return f"{result.method} on {result.env}, seed {result.seed}"


def packed(folder: Path) -> tuple[list[dict[str, Any]], int]:
    """Returns the rollout trees for the script of ``rollouts.html``, in the order of training, and the number of
    recorded trees. Of too many trees, a part is returned, evenly spaced over training. Unreadable trees are left out.
    """
    paths = sorted((folder / "rollouts").glob("*.jsonl"))
    counts, size = line_counts(paths), sum(path.stat().st_size for path in paths)
    total = sum(counts.values())
    most = total if size <= CHARACTERS else total * CHARACTERS // size
    found = []
    for tree in spaced_trees(counts, most, []):
        try:
            found.append(_tree(tree))
        except (AttributeError, KeyError, TypeError):  # the tree does not have the form that a run records
            continue
    return found, total


def _tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a recorded rollout tree for the script of ``rollouts.html``."""
    state, turns = tree["state"], [turn for turn in tree["turns"] if isinstance(turn, dict)][:TURNS]
    cut = len(turns) < len(tree["turns"])  # if the tree is cut, its rewards no longer match its leaves
    given = tree.get("rewards")
    rewards = given if isinstance(given, dict) and not cut else {}
    return {
        "task": str(state.get("task") or state.get("id")),
        "type": state.get("type"),
        "turn": state.get("turn"),
        "iteration": tree.get("iteration"),
        "messages": [[str(m.get("role", "?")), clip(m.get("content"))] for m in state.get("messages") or ()],
        "goal": goal([(str(m.get("role", "?")), str(m.get("content") or "")) for m in state.get("messages") or ()]),
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
