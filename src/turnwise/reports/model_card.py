"""Writes the model card of a run's policy: where the policy comes from, its measured success, and how to load it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.constants import HF_HUB_CACHE

from turnwise.reports.markdown import cell, facts, table
from turnwise.reports.remove_secrets import Cleaner, cleaner
from turnwise.reports.result_rows import domain_rows, reply_rows
from turnwise.reports.sentences import (
    held_out_sentence,
    interval,
    judged_on_dialogues,
    ood_sentence,
    percent,
    scale_sentence,
    signed,
)
from turnwise.runs.result_file import Comparison, Result, read_result
from turnwise.runs.run_folder import read_record

PAPERS = {
    "pivotrl": "2603.21383",
    "awpo": "2512.19126",
    "mixed": "2512.19126",
    "trace": "2606.11119",
    "selective": "2605.05802",
    "grpo": "2402.03300",
    "dapo": "2503.14476",
    "dr_grpo": "2503.20783",
    "toolrl": "2504.13958",
}
"""Method -> arXiv id of its paper."""


@dataclass(frozen=True, slots=True)
class Base:
    """The base model of a run, with a name that has a meaning on other machines.

    Attributes:
        name: an id on the Hub, the name of a base model that ships with the package, or the last component of the
            model's path on the run's machine.
        shipped: whether the base model ships with the package.
        on_hub: whether ``name`` is an id on the Hub.
        local: whether the base model is a folder of this machine. If ``shipped``, ``on_hub`` and ``local`` are all
            false, ``name`` may be a folder of another machine or an id on the Hub.
    """

    name: str
    shipped: bool = False
    on_hub: bool = False
    local: bool = False


def base_of(settings: Mapping[str, Any]) -> Base:
    """Returns the base model of a run. A name counts as an id on the Hub if this machine's cache of the Hub has it."""
    model = str(settings.get("policy.model") or "unknown")
    if "/" not in model and not model.startswith((".", "~")) and files("turnwise").joinpath("assets", model).is_dir():
        return Base(model, shipped=True)
    if model.startswith((".", "/", "~", "file:")) or Path(model).exists():
        return Base(Path(model).name or model, local=True)
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model):
        return Base(Path(model).name)
    return Base(model, on_hub=Path(HF_HUB_CACHE, f"models--{model.replace('/', '--')}").is_dir())


def model_card(folder: Path, part: str, repository: str, licence: str | None = None, project: str | None = None) -> str:
    """Returns the model card of a finished run's policy: Markdown text that begins with the Hub's metadata.

    Args:
        part: which part of the run is published, ``adapter`` or ``model``.
        repository: ``owner/name`` on the Hub.
        licence: the Hub's name of a licence. None: Apache-2.0 if the base model ships with the package, otherwise the
            card names no licence.
        project: URL of the code at the commit with which the run was made.

    Raises:
        InputError: ``result.json`` or ``config.yaml`` is missing or damaged.
    """
    result, settings = read_result(folder), read_record(folder)
    base, clean = base_of(settings), cleaner(folder)
    licence = licence or ("apache-2.0" if base.shipped else None)
    data = ModelCardData(
        base_model=base.name if base.on_hub else None,
        library_name="peft" if part == "adapter" else "transformers",
        license=licence,
        pipeline_tag="text-generation",
        model_name=repository.rpartition("/")[2],
        tags=["turnwise", "reinforcement-learning", result.method, *(["lora"] if part == "adapter" else [])],
        eval_results=_scores(result),
    )
    text = f"---\n{data.to_yaml()}\n---\n\n# {repository.rpartition('/')[2]}\n\n" + "\n".join(
        (
            _opening(result, base, part),
            "## Origin\n\n" + facts(_origin(result, settings, base, clean, licence, project)),
            "## Measured before and after training\n\n" + _measured(result),
            "## Use\n\n" + _use(base, part, repository),
            "## Settings\n\n" + _settings(clean.value(settings)),
        )
    )
    text = clean.text(text)
    ModelCard(text)  # checks the text: raises an error if its metadata cannot be parsed
    return text


def _scores(result: Result) -> list[EvalResult] | None:
    after = result.in_domain.after
    if after is None:
        return None
    what = "accepted replies" if judged_on_dialogues(result) else "held-out success"
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=f"turnwise-{result.env}",
            dataset_name=f"{result.env}, held-out",
            metric_type="success_rate",
            metric_name=f"{what} after training, %",
            metric_value=round(after, 2),
        )
    ]


def _opening(result: Result, base: Base, part: str) -> str:
    what = "LoRA adapter" if part == "adapter" else "model"
    paper = PAPERS.get(result.method)
    method = f"`{result.method}`" + (f" ([arXiv:{paper}](https://arxiv.org/abs/{paper}))" if paper else "")
    lines = [
        f"A {what} of {_base_text(base)}, trained with Turnwise's method {method} in the environment `{result.env}`.",
        f"`scripts/push.py` wrote this page from the files of the run. {scale_sentence(result)}",
    ]
    return "\n".join([*lines, *(f"Warning from the run: {cell(warning)}" for warning in result.warnings)]) + "\n"


def _base_text(base: Base) -> str:
    if base.on_hub:
        return f"[{base.name}](https://huggingface.co/{base.name})"
    return f"`{base.name}`" + (
        ", a base model that ships with Turnwise" if base.shipped else ", a local folder" * base.local
    )


def _origin(
    result: Result,
    settings: Mapping[str, Any],
    base: Base,
    clean: Cleaner,
    licence: str | None,
    project: str | None,
) -> dict[str, str]:
    data = {key: value for key, value in settings.items() if key in ("data.file", "data.trajectories", "env.files")}
    rows = {
        "base model": _base_text(base),
        "method": f"`{result.method}`",
        "starts from": f"the policy of {clean.value(str(start))}" if (start := settings.get("policy.start")) else "",
        "data": f"environment `{result.env}`" + "".join(f", `{k}={clean.value(v)}`" for k, v in data.items()),
        "scale, seed": f"{result.scale}, {result.seed}",
        "command": f"`{clean.command(result.command)}`" if result.command else "",
        "configuration hash": f"`{result.config_hash}`" if result.config_hash else "",
        "code": f"Turnwise at commit `{result.commit}`" if result.commit else "Turnwise",
        "versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()),
        "machine": result.machine or "",
        "finished": result.finished if isinstance(result.finished, str) else "",
        "turns and tokens sampled for training": f"{result.rollout_turns:,} and {result.rollout_tokens:,}",
        "licence": licence or "not stated",
        "project": f"[{project}]({project})" if project else "",
    }
    return {name: cell(text) for name, text in rows.items() if text}


def _measured(result: Result) -> str:
    head = ["measured", "before", "after", "change, points", "95 % interval", "tasks"]
    rows = [[f"{mode}, {split}", *_compared(part)] for mode, split, part in domain_rows(result)]
    if result.held_out:
        for label, part in reply_rows(result.held_out):
            rows.append([f"{label}, accepted", *_compared(part.functional, part.replies)])
    out = result.ood
    for suite in out.suites:
        compared = Comparison(
            base=out.base.get(suite), after=out.after.get(suite), delta_ci95=out.change_ci95.get(suite)
        )
        items = out.items.get(suite) if isinstance(out.items, dict) else out.items
        rows.append([f"out of domain, {suite}", *_compared(compared, items)])
    text = table(head, [[cell(str(value)) for value in row] for row in rows]) if rows else "Nothing was measured.\n"
    sentences = [ood_sentence(result), held_out_sentence(result)]
    text += "".join(f"\n{sentence}\n" for sentence in sentences if sentence)
    return text + "\nIntervals are 95 % intervals of the change over the same tasks (paired bootstrap).\n"


def _compared(part: Comparison, tasks: int | None = None) -> list[str]:
    tasks = part.tasks if part.tasks is not None else tasks
    return [
        percent(part.base),
        percent(part.after),
        signed(part.delta),
        interval(part.delta_ci95),
        "" if tasks is None else str(tasks),
    ]


def _use(base: Base, part: str, repository: str) -> str:
    if part == "model":
        lines = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f'model = AutoModelForCausalLM.from_pretrained("{repository}")',
            f'tokenizer = AutoTokenizer.from_pretrained("{repository}")',
        ]
    else:
        shipped = f'str(tiny_path("{base.name}"))'
        lines = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            *(["from turnwise.models.shipped import tiny_path"] if base.shipped else []),
            "",
            f"base = AutoModelForCausalLM.from_pretrained({shipped if base.shipped else json.dumps(base.name)})",
            f'model = PeftModel.from_pretrained(base, "{repository}")',
            f'tokenizer = AutoTokenizer.from_pretrained("{repository}")',
        ]
    return "```python\n" + "\n".join(lines) + "\n```\n"


def _settings(settings: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True).replace("```", "'''")
    return f"The settings that determine what the run computes:\n\n```yaml\n{text}```\n"
