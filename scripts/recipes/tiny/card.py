"""Writes the model card of a base policy from measured values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.recipes.tiny.recipe import Training

from turnwise.env import Environment
from turnwise.evaluation.skills import SKILLS

_TEXT = """# The tiny base policy `{name}`

A {family} causal language model of {parameters:,} parameters with a byte-level BPE vocabulary of {vocabulary}, trained on
nothing but this project's own data: {about}, and eight toy skills. It sees what to do, often does something else, and can
forget: that is what it is for. What it shows is a mechanism, never a benchmark's score.

## How it was made

    python -m scripts.recipes.tiny --base {name} --ship

| | |
|---|---|
| settings | {settings} |
| trained | {tokens:,} tokens in {steps} steps, {minutes:.0f} minutes |
| machine | {machine} |

{stretches}

## What it does

Held-out tasks, {tasks} of each world, half of the split `seen` and half of `unseen`; percentages.

| world | decoding | success | seen | unseen | repeated actions | turns an episode |
|---|---|---|---|---|---|---|
{worlds}

{details}Toy skills, {items} test items each, greedy; percentages. Each is named after nothing but what it is; the benchmark that
its place in the suite mirrors is given for orientation.

| skill | mirrors | score |
|---|---|---|
{skills}
"""


def write_card(
    folder: Path, run: Training, found: dict[str, Any], worlds: Mapping[str, Environment], tasks: int, items: int
) -> None:
    """Writes ``README.md`` with the measured values.

    ``found`` is the result of ``scripts.recipes.tiny.measure.measure`` for both decoding modes, ``worlds`` maps names of the
    measured environments to the environments, ``tasks`` is the number of tasks of each environment, and ``items`` that
    of each skill.
    """
    rows = []
    for world, modes in found["worlds"].items():
        for decoding, r in modes.items():
            shares = f"{r['success']:.1f} | {r['seen']:.1f} | {r['unseen']:.1f} | {100 * r['repeated']:.1f}"
            rows.append(f"| {world} | {decoding} | {shares} | {r['turns']:.1f} |")
    recipe = run.recipe
    details = run.mixture.details(run.model, run.tokenizer, worlds, found, tasks)
    text = _TEXT.format(
        name=run.mixture.name,
        family=run.recipe.family.capitalize(),
        about=run.mixture.about,
        stretches=run.mixture.stretches,
        details=f"{details}\n\n" if details else "",
        parameters=sum(p.numel() for p in run.model.parameters()),
        vocabulary=len(run.tokenizer),
        settings=", ".join(f"{n.replace('_', ' ')} {getattr(recipe, n)}" for n in recipe.__dataclass_fields__),
        tokens=run.tokens,
        steps=run.step,
        minutes=run.seconds / 60,
        machine=run.machine,
        tasks=tasks,
        items=items,
        worlds="\n".join(rows),
        skills="\n".join(f"| {n} | {SKILLS[n].mirrors} | {100 * s:.1f} |" for n, s in found["skills"].items()),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
