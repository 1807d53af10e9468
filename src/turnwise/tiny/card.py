"""The model card, written by the recipe from what it measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from turnwise.evaluation.skills import SKILLS
from turnwise.tiny.recipe import Run

_TEXT = """# The tiny base policy

A Qwen3 causal language model of {parameters:,} parameters with a byte-level BPE vocabulary of {vocabulary}, trained from
scratch on this project's own data: clumsy demonstrations of the household world, drills in reading its lists, and eight toy
skills. It sees what to do, often walks away from it, and can forget: that is what it is for. What it shows is a mechanism,
never a benchmark's score.

## How it was made

    python scripts/make_tiny.py --ship

| | |
|---|---|
| settings | {settings} |
| trained | {tokens:,} tokens in {steps} steps, {minutes:.0f} minutes |
| machine | {machine} |

Three stretches (`src/turnwise/tiny/recipe.py`): imitation of the clumsy expert with the skills among it; drills in reading
lists; imitation of an expert that errs more and above all walks away. Demonstrations and drills come from the train split
alone, skills from their train items alone.

## What it does

Held-out household tasks, {tasks} of them, half in rooms seen in training and half in unseen ones; percentages.

| decoding | success | seen rooms | unseen rooms | inadmissible actions | repeated actions | turns an episode |
|---|---|---|---|---|---|---|
{household}

**Reading**: P(take) tells lists that hold the task's object from lists that do not with an area under the ROC curve of
{reads:.3f} (lists that the good expert sees in {tasks} held-out tasks; 0.5 is blind).

Toy skills, {items} test items each, greedy; percentages. Each is named after nothing but what it is; the benchmark that
its place in the suite mirrors is given for orientation.

| skill | mirrors | score |
|---|---|---|
{skills}
"""


def write_card(folder: Path, run: Run, found: dict[str, Any], tasks: int, items: int) -> None:
    """Write ``README.md`` with the measured figures."""
    rows = []
    for decoding in ("greedy", "sampled"):
        r = found[decoding]
        shares = f"{100 * r['inadmissible']:.1f} | {100 * r['repeated']:.1f} | {r['turns']:.1f}"
        rows.append(f"| {decoding} | {r['success']:.1f} | {r['seen']:.1f} | {r['unseen']:.1f} | {shares} |")
    recipe = run.recipe
    text = _TEXT.format(
        parameters=sum(p.numel() for p in run.model.parameters()),
        vocabulary=len(run.tokenizer),
        settings=", ".join(f"{n.replace('_', ' ')} {getattr(recipe, n)}" for n in recipe.__dataclass_fields__),
        tokens=run.tokens,
        steps=run.step,
        minutes=run.seconds / 60,
        machine=f"{os.cpu_count()} CPU cores, {platform.machine()}, {recipe.threads} threads",
        tasks=tasks,
        items=items,
        reads=found["reads"],
        household="\n".join(rows),
        skills="\n".join(f"| {n} | {SKILLS[n].mirrors} | {100 * s:.1f} |" for n, s in found["skills"].items()),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
